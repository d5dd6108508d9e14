//go:build integration

package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/repair"
	"github.com/berthrun/berth/internal/sys/sysmount"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// damagedStore is a store that cases copy and damage. It has the images idle, used and gone, which share their lowest
// layer; containers run of used and of gone, and gone is removed.
type damagedStore struct {
	root string
	want map[string]map[string]string
	// files, directories and databases are the objects to damage, by name; paths are below root.
	files, directories, databases map[string]string
	idleLayer, usedLayer          string
	// lower are the layers below each container, want the files of it.
	lower      map[string][]string
	containers map[string]map[string]string
}

const damagedEnv = "GREETING=hello"

func newDamagedStore(t *testing.T) *damagedStore {
	t.Helper()
	registry := &imagetest.Registry{}
	host := serve(t, registry)
	cfg := testConfig(t)
	cfg.Snapshotter = AutoSnapshotter // the cases mount overlays by themselves
	s := open(t, cfg)
	f := &damagedStore{root: cfg.Root, want: map[string]map[string]string{}, lower: map[string][]string{}, containers: map[string]map[string]string{}}
	ids := map[string]*imagetest.Image{}
	for _, name := range []string{"idle", "used", "gone"} {
		img := build(t, imagetest.Spec{Compression: "gzip", Env: []string{damagedEnv}, Layers: []imagetest.Layer{
			{{Path: "base", Content: []byte(strings.Repeat("base", 1000))}, {Path: "dir/hidden", Content: []byte("hidden")}},
			{
				{Path: "attr", Content: []byte(name), Xattrs: map[string]string{"user.x": "y"}},
				{Path: "link", Symlink: "base"},
				{Path: "dir", Dir: true, Mode: 0o750},
				{Path: "dir/own", Content: []byte(strings.Repeat(name, 1000))},
				imagetest.Opaque("dir"),
			},
		}})
		registry.Push(name, "1", img)
		ids[name] = img
		if _, err := s.Pull(t.Context(), host+"/"+name+":1", image.Auth{}, nil); err != nil {
			t.Fatal(err)
		}
		m, err := s.Prepare(t.Context(), image.RootfsSpec{Key: "c-" + name, ImageID: img.ID()})
		if err != nil {
			t.Fatal(err)
		}
		files, err := listing(m.Path)
		if err != nil {
			t.Fatal(err)
		}
		f.containers["c-"+name], f.lower["c-"+name] = files, lowerOf(t, s, img.ID())
		if name == "idle" {
			if err := s.Release(t.Context(), "c-idle"); err != nil {
				t.Fatal(err)
			}
			delete(f.containers, "c-idle")
		}
		if name != "gone" {
			f.want[host+"/"+name+":1"] = files
		}
	}
	if err := s.Remove(t.Context(), host+"/gone:1"); err != nil {
		t.Fatal(err)
	}
	leaveUnsynced(t, s, unsynced{Boot: bootID(t), Snapshots: chains(t, s, ids["idle"].ID())})
	for key := range f.containers {
		if err := sysmount.Detach(filepath.Join(cfg.State, "rootfs", key)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	leaveIngest(t, s)
	if err := os.MkdirAll(filepath.Join(cfg.Root, "trash/old/tree"), 0o700); err != nil {
		t.Fatal(err)
	}
	layer := func(key string, n int) string { return filepath.Join("snapshots/snapshots", f.lower[key][n]) }
	blob := func(b imagetest.Blob) string { return "content/blobs/sha256/" + b.Digest.Encoded() }
	f.idleLayer, f.usedLayer = layer("c-idle", 0), layer("c-used", 0)
	f.databases = map[string]string{"metadata.db": "metadata.db", "snapshots' metadata.db": "snapshots/metadata.db"}
	f.files = map[string]string{
		"metadata.db": "metadata.db", "snapshots' metadata.db": "snapshots/metadata.db", "copy of the names": "names.json",
		"note of a clean end": "closed", "note of a rebuild": "rebuilding", "lock": "lock",
		"manifest of an image": blob(ids["idle"].Manifest), "config of an image": blob(ids["idle"].Config),
		"blob of a layer": blob(ids["idle"].Layers[1]), "blob of a shared layer": blob(ids["idle"].Layers[0]),
		"manifest of an image in use": blob(ids["used"].Manifest), "config of an image in use": blob(ids["used"].Config),
		"blob of a layer in use":                         blob(ids["used"].Layers[1]),
		"data of a download":                             "content/ingest/part/data",
		"name of a download":                             "content/ingest/part/ref",
		"label of a layer":                               filepath.Join(filepath.Dir(f.idleLayer), database.LabelName),
		"record of a root filesystem":                    "containers/c-used/image",
		"record of a root filesystem of a removed image": "containers/c-gone/image",
		"list of unsynced layers":                        "unsynced/m",
	}
	f.directories = map[string]string{
		"content": "content", "blobs": "content/blobs", "sha256 blobs": "content/blobs/sha256", "ingests": "content/ingest", "ingest": "content/ingest/part",
		"snapshots": "snapshots", "layers": "snapshots/snapshots", "layer": filepath.Dir(f.idleLayer), "layer in use": filepath.Dir(f.usedLayer),
		"files directory of a layer": f.idleLayer, "containers": "containers", "root filesystem": "containers/c-used",
		"pool": "pool", "trash": "trash", "unsynced": "unsynced", "quarantine": "quarantine",
	}
	return f
}

func bootID(t *testing.T) string {
	t.Helper()
	boot, err := sysproc.BootID()
	if err != nil {
		t.Fatal(err)
	}
	return boot
}

// leaveIngest leaves a download that can be continued.
func leaveIngest(t *testing.T, s *Images) {
	t.Helper()
	dir := filepath.Join(s.db.ContentDir(), "ingest/part")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	stamp := time.Now().Format(time.RFC3339Nano)
	for name, text := range map[string]string{
		"ref": "k8s.io/7/download-sha256:" + strings.Repeat("a", 64), "startedat": stamp, "updatedat": stamp, "data": strings.Repeat("x", 1<<20),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// setupFault is why a case cannot be tried.
type setupFault struct{ error }

// noteAgain has the note of a clean end fit the times and sizes of databases that a disk has damaged by itself. What the
// note says of their content is from before.
func noteAgain(repairer repair.Repairer, root string) error {
	type note struct {
		Boot  string                    `json:"boot"`
		Files map[string]map[string]any `json:"files"`
	}
	read := func() (n note, err error) {
		data, err := os.ReadFile(filepath.Join(root, "closed"))
		if err == nil {
			d := json.NewDecoder(bytes.NewReader(data))
			d.UseNumber()
			err = d.Decode(&n)
		}
		return n, err
	}
	before, err := read()
	if err != nil {
		return err
	}
	// Where a directory or a fifo is in the place of a database, or a file in that of its directory, the note stays.
	if err := repairer.Closed(); err != nil {
		if errors.Is(err, syscall.ENOTDIR) {
			return nil
		}
		return err
	}
	after, err := read()
	if err != nil {
		return err
	}
	for path, file := range after.Files {
		if old := before.Files[path]; old != nil {
			file["sum"] = old["sum"]
		}
	}
	data, err := json.Marshal(after)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, "closed"), data, 0o600)
}

// outcome is a row of the table.
type outcome struct {
	damageCase
	found, mended string
	faults        []string
}

// try damages a copy of the store and has a worker open it.
func (f *damagedStore) try(t *testing.T, c damageCase) (o outcome) {
	t.Helper()
	o = outcome{damageCase: c}
	dir := t.TempDir()
	defer os.RemoveAll(dir) // not only at the end of all cases
	defer func() {
		switch r := recover().(type) {
		case nil:
		case setupFault:
			o.faults = append(o.faults, "the case cannot be set up: "+r.Error())
		default:
			panic(r)
		}
	}()
	root, state, outside := filepath.Join(dir, "root"), filepath.Join(dir, "state"), filepath.Join(dir, "outside")
	must := func(err error) {
		t.Helper()
		if err != nil {
			panic(setupFault{err}) // t.Fatal would end all cases
		}
	}
	must(os.MkdirAll(filepath.Join(outside, "dir/sub"), 0o755))
	must(os.WriteFile(filepath.Join(outside, "dir/canary"), []byte("canary"), 0o644))
	must(os.MkdirAll(filepath.Join(state, "rootfs"), 0o700))
	if out, err := exec.Command("cp", "-a", "--reflink=auto", f.root, root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for key := range f.containers {
		target := filepath.Join(state, "rootfs", key)
		must(os.Mkdir(target, 0o700))
		must(sysmount.MountOverlay(sysmount.Overlay{
			LowerRoot: filepath.Join(root, "snapshots/snapshots"), Lower: f.lower[key],
			Upper: filepath.Join(root, "containers", key, "upper"), Work: filepath.Join(root, "containers", key, "work"),
		}, target))
		defer func() { must(sysmount.Detach(target)) }()
	}
	repairer := repair.Repairer{Paths: database.Paths{Root: root}}
	must(os.RemoveAll(filepath.Join(root, "closed")))
	must(repairer.Closed())
	must(c.change(filepath.Join(root, c.path), outside))
	switch {
	case !c.noted && c.object != "note of a clean end":
		must(os.RemoveAll(filepath.Join(root, "closed")))
	case c.noted && c.object != "note of a clean end":
		must(noteAgain(repairer, root))
	}
	before, err := listing(outside)
	must(err)
	seen := map[string]map[string]string{}
	if c.inUse {
		for key := range f.containers {
			seen[key], err = listing(filepath.Join(state, "rootfs", key))
			must(err)
		}
	} else {
		seen = f.containers
	}
	report, err := f.work(t, root, state)
	if err != nil {
		o.faults = append(o.faults, err.Error())
	} else {
		o.judge(f, report)
	}
	after, err := listing(outside)
	must(err)
	if diff := firstDifference(after, before); diff != "" {
		o.faults = append(o.faults, "a file outside of the store was changed: "+diff)
	}
	o.faults = append(o.faults, f.running(c, state, seen)...)
	return o
}

// running looks whether the containers still see the files that they have seen.
func (f *damagedStore) running(c damageCase, state string, seen map[string]map[string]string) (faults []string) {
	if strings.HasSuffix(c.damage, "outside") && strings.HasPrefix(c.path, "snapshots") {
		return nil
	}
	for key, want := range seen {
		if !c.inUse && destroyed(c.path, c.damage, f.lower[key], key) {
			continue
		}
		got, err := listing(filepath.Join(state, "rootfs", key))
		if err != nil {
			faults = append(faults, fmt.Sprintf("the running container %s: %v", key, err))
		} else if diff := firstDifference(got, want); diff != "" {
			faults = append(faults, fmt.Sprintf("the running container %s: %s", key, diff))
		}
	}
	return faults
}

// destroyed reports whether the damage itself has removed the files of a container.
func destroyed(path, damage string, lower []string, key string) bool {
	if strings.HasPrefix(damage, "with ") || damage == "wrong mode" {
		return false
	}
	for _, dir := range lower {
		if strings.HasPrefix("snapshots/snapshots/"+dir, path) {
			return true
		}
	}
	return strings.HasPrefix("containers/"+key+"/upper", path)
}

// work runs the worker, and kills it when it hangs.
func (f *damagedStore) work(t *testing.T, root, state string) (*workerReport, error) {
	t.Helper()
	job, err := json.Marshal(workerJob{Root: root, State: state, Helper: helper, Want: f.want, Env: damagedEnv})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), caseTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", damageWorkerArg)
	cmd.Stdin = bytes.NewReader(job)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("the daemon hangs")
	}
	if err != nil {
		text, _, _ := strings.Cut(stderr.String(), "\n\n")
		return nil, fmt.Errorf("the daemon ends: %w: %.1500s", err, text)
	}
	var report workerReport
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatal(err)
	}
	return &report, nil
}

// judge fills the row of the table.
func (o *outcome) judge(f *damagedStore, r *workerReport) {
	o.faults = r.Wrong
	if r.Failed != "" {
		o.faults = append(o.faults, "the store does not open: "+r.Failed)
		return
	}
	switch {
	case len(r.Faults)+len(r.Logged) == 0 && len(r.Opened) == len(f.want) && len(r.Refused) > 0:
		// The export has it fetched in the background, and the check sees it or not.
		o.found = "fsck, export"
	case len(r.Faults)+len(r.Logged) > 0 && len(r.Found) > 0:
		o.found = "start, fsck"
	case len(r.Faults)+len(r.Logged) > 0:
		o.found = "start"
	case len(r.Found) > 0:
		o.found = "fsck"
	default:
		o.found = "-"
	}
	all := len(f.want)
	switch {
	case o.found == "-" && len(r.Opened) == all:
		o.mended = "no harm"
	case o.found == "-":
		o.faults = append(o.faults, fmt.Sprintf("only %v are served, and nobody says why", r.Opened))
	case o.found == "fsck, export" && len(r.Repaired) == all && len(r.Left) == 0:
		o.mended = "fsck --repair"
	case len(r.Opened) == all && len(r.Found) == 0:
		o.mended = "at the start"
	case len(r.Repaired) == all && len(r.Left) == 0:
		o.mended = "fsck --repair"
	case len(r.Pulled) == all:
		o.mended = "next pull"
	default:
		o.faults = append(o.faults, fmt.Sprintf("left: %q; served %v, pulled %v", r.Left, r.Repaired, r.Pulled))
	}
	// The check names a container whose layers are gone, and files that belong to no container, until they are removed.
	lasting := o.path == "containers" || o.path == "containers/c-used"
	for key, lower := range f.lower {
		lasting = lasting || destroyed(o.path, o.damage, lower, key)
	}
	if len(r.Again) > 0 && !lasting {
		o.faults = append(o.faults, fmt.Sprintf("the next start still says: %.300q", r.Again))
	}
}

// casesAtOnce is how many cases run side by side. Each waits for its disk, too.
const casesAtOnce = 4

// damageTable tries cases, and prints what became of each.
func damageTable(t *testing.T, f *damagedStore, cases []damageCase) (outcomes []outcome) {
	t.Helper()
	var text bytes.Buffer
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "object\tdamage\tnote\tfound by\tmended")
	bad := 0
	outcomes = make([]outcome, len(cases))
	var running errgroup.Group
	running.SetLimit(casesAtOnce)
	for i, c := range cases {
		running.Go(func() error { outcomes[i] = f.try(t, c); return nil })
	}
	_ = running.Wait() // the outcomes have the faults
	for i, c := range cases {
		o := outcomes[i]
		marker := "no"
		if c.noted {
			marker = "yes"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", c.object, c.damage, marker, o.found, o.mended)
		if len(o.faults) > 0 {
			bad++
			t.Errorf("%s: %s", c, strings.Join(o.faults, "; "))
		}
	}
	table.Flush()
	t.Logf("%d cases, %d with faults\n%s", len(cases), bad, text.String())
	return outcomes
}

// TestDamageIsFoundAndMended tries damage of which each kind once had its own fault. TestDamageMatrix tries all.
func TestDamageIsFoundAndMended(t *testing.T) {
	f := newDamagedStore(t)
	checkDamagePage(t, damageCases(f))
	cases := slices.DeleteFunc(damageCases(f), func(c damageCase) bool { return !c.quick })
	if len(cases) != len(quick) {
		t.Errorf("%d cases, want %d", len(cases), len(quick))
	}
	damageTable(t, f, cases)
}
