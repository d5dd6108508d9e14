package checkpoint

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// program writes a program in the place of CRIU.
func program(t *testing.T, script string) *Tool {
	t.Helper()
	path := filepath.Join(t.TempDir(), "criu")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return &Tool{Path: path}
}

func TestFacts(t *testing.T) {
	const answers = `case $1 in
--version) echo "Version: 4.2"; echo "GitID: v4.2";;
--network-lock) [ "$2 $3" = "skip --version" ] || exit 1; %s;;
check) %s;;
esac
`
	good := program(t, fmt.Sprintf(answers, "exit 0", "echo Looks good."))
	facts, err := good.Now(t.Context())
	if want := (Facts{Version: "4.2", KeepsNetwork: true}); err != nil || facts != want || good.Last() != want {
		t.Errorf("a good program: %+v, %v, then %+v", facts, err, good.Last())
	}
	old := program(t, fmt.Sprintf(answers, `echo "Error (criu/config.c:1034): Invalid value for --network-lock: skip"; exit 1`, "exit 0"))
	if facts, err := old.Now(t.Context()); err != nil || facts != (Facts{Version: "4.2"}) {
		t.Errorf("a program whose --network-lock has no skip: %+v, %v", facts, err)
	}
	bad := program(t, fmt.Sprintf(answers, "exit 0", `echo "Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted"; echo "Error (criu/vdso.c:381): vdso: Unexpected rt vDSO area bounds" >&2; exit 1`))
	_, err = bad.Now(t.Context())
	const want = "criu check: vdso: Unexpected rt vDSO area bounds"
	if !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), bad.Path+") cannot be used: "+want+": ") || bad.Last().Fault != want {
		t.Errorf("a program that does not work: %v, then %+v", err, bad.Last())
	}
	missing := &Tool{Path: "/no/such/criu"}
	if _, err := missing.Now(t.Context()); !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "checkpoint.criu") {
		t.Errorf("no program: %v", err)
	}
	// It is asked again when it could not be used, and when its file changes.
	if err := os.Rename(good.Path, bad.Path); err != nil {
		t.Fatal(err)
	}
	if facts, err := bad.Now(t.Context()); err != nil || facts.Version != "4.2" {
		t.Errorf("after a repair: %+v, %v", facts, err)
	}
}

// dumper is a program that behaves as `criu dump`: it runs the script while the processes are stopped.
const dumper = `while [ $# -gt 0 ]; do [ "$1" = --action-script ] && script=$2; shift; done
CRTOOLS_SCRIPT_ACTION=pre-dump "$script" || exit 3
CRTOOLS_SCRIPT_ACTION=network-lock "$script" || { echo undone > undone; exit 5; }
echo dumped > images/pages-1.img; echo statistics > stats-dump
CRTOOLS_SCRIPT_ACTION=post-dump "$script" || { echo undone > undone; exit 4; }
echo resumed > resumed
`

func newDump(t *testing.T, tool *Tool) *dump {
	t.Helper()
	d := &dump{dir: filepath.Join(t.TempDir(), "work"), path: tool.Path}
	if err := d.make(); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *dump) has(name string) bool {
	_, err := os.Lstat(d.at(name))
	return err == nil
}

func TestRunWaitsForTheDifference(t *testing.T) {
	d := newDump(t, program(t, dumper))
	calls := 0
	if err := d.run(t.Context(), []string{"dump", "--action-script", d.at(scriptName)}, action{afterDump, func() error {
		calls++
		if d.has("resumed") || !d.has("images/pages-1.img") {
			t.Error("the processes are not stopped, or not written")
		}
		return nil
	}}); err != nil || calls != 1 || !d.has("resumed") {
		t.Errorf("%v after %d calls", err, calls)
	}
}

// TestRunStopsTwice: CRIU waits before it reads anything, and again when all is written. A failure in the first wait lets
// the processes go on unread.
func TestRunStopsTwice(t *testing.T) {
	d := newDump(t, program(t, dumper))
	args := []string{"dump", "--action-script", d.at(scriptName)}
	var order []string
	note := func(name string, err error) action {
		return action{name, func() error {
			order = append(order, fmt.Sprintf("%s, read: %v, gone on: %v", name, d.has("images/pages-1.img"), d.has("resumed")))
			return err
		}}
	}
	if err := d.run(t.Context(), args, note(afterStop, nil), note(afterDump, nil)); err != nil || !d.has("resumed") {
		t.Error(err)
	}
	if want := []string{"network-lock, read: false, gone on: false", "post-dump, read: true, gone on: false"}; !slices.Equal(order, want) {
		t.Errorf("got %q", order)
	}
	d, other := newDump(t, program(t, dumper)), errors.New("another container cannot be written")
	err := d.run(t.Context(), []string{"dump", "--action-script", d.at(scriptName)}, note(afterStop, other), note(afterDump, nil))
	if !errors.Is(err, other) || d.has("images/pages-1.img") || !d.has("undone") {
		t.Errorf("a failure elsewhere: %v", err)
	}
	// It ends without the wait: nobody knows whether all were stopped.
	d = newDump(t, program(t, "exit 0\n"))
	if err := d.run(t.Context(), []string{"dump"}, note(afterStop, nil), note(afterDump, nil)); err == nil || !strings.Contains(err.Error(), afterStop) {
		t.Errorf("a CRIU that does not wait: %v", err)
	}
}

// TestMissingCapabilityIsNamed: CRIU's own words do not say what berth lacks.
func TestMissingCapabilityIsNamed(t *testing.T) {
	const refusal = "Can't get rlimit 0: Operation not permitted"
	if got := lacking(refusal, false); !strings.Contains(got, "CAP_SYS_RESOURCE") {
		t.Errorf("without the capability: %q", got)
	}
	if got := lacking(refusal, true) + lacking("tty: Found dangling tty", false); got != "" {
		t.Errorf("it is not the cause: %q", got)
	}
}

// TestRunEndsCRIU: when the changes cannot be written, or time is over, the script fails, so that CRIU undoes the dump. A
// CRIU that does not end is killed.
func TestRunEndsCRIU(t *testing.T) {
	broken := errors.New("disk on fire")
	d := newDump(t, program(t, dumper))
	if err := d.run(t.Context(), []string{"dump", "--action-script", d.at(scriptName)}, action{afterDump, func() error { return broken }}); !errors.Is(err, broken) || d.has("resumed") || !d.has("undone") {
		t.Errorf("a difference that fails: %v", err)
	}

	d = newDump(t, program(t, dumper))
	removed := errors.New("the container is removed")
	waiting, end := context.WithCancelCause(t.Context())
	if err := d.run(waiting, []string{"dump", "--action-script", d.at(scriptName)}, action{afterDump, func() error {
		end(removed)
		return context.Cause(waiting)
	}}); !errors.Is(err, removed) || d.has("resumed") || !d.has("undone") {
		t.Errorf("an end while the processes are stopped: %v", err)
	}

	d = newDump(t, program(t, "echo $$ > began; sleep 1000 & wait\n"))
	late := errors.New("it took too long")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- d.run(ctx, []string{"dump"}, action{afterDump, func() error { t.Error("nothing is stopped"); return nil }})
	}()
	for !d.has("began") {
		time.Sleep(time.Millisecond)
	}
	cancel(late)
	if err := <-done; !errors.Is(err, late) || !strings.Contains(err.Error(), "the container goes on") {
		t.Errorf("a program that hangs: %v", err)
	}

	d = newDump(t, program(t, `echo "(00.1) Error (criu/tty.c:1): tty: Found dangling tty" > dump.log; exit 1`+"\n"))
	if err := d.run(t.Context(), []string{"dump"}); !errors.Is(err, errs.State) || !strings.Contains(err.Error(), "tty: Found dangling tty") {
		t.Errorf("a program that refuses: %v", err)
	}
	d = newDump(t, program(t, "exit 0\n"))
	if err := d.run(t.Context(), []string{"dump"}, action{afterDump, func() error { return nil }}); err == nil {
		t.Error("a program that does nothing has succeeded")
	}
}

// TestArguments: nothing asks CRIU to touch connections or the firewall of a pod, which would not be repaired when CRIU is
// killed.
func TestArguments(t *testing.T) {
	c := &Container{Pid: os.Getpid(), Spec: &specs.Spec{Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.NetworkNamespace, Path: "/proc/self/ns/net"}}}}}
	d := newDump(t, &Tool{})
	d.facts = Facts{Version: "4.2", KeepsNetwork: true}
	args, err := d.arguments(c)
	if err != nil {
		t.Fatal(err)
	}
	if at := slices.Index(args, "--network-lock"); at < 0 || args[at+1] != "skip" || slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--tcp") }) {
		t.Errorf("arguments: %q", args)
	}
	d.facts = Facts{Version: "3.18"}
	if _, err := d.arguments(c); !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "3.18") {
		t.Errorf("a CRIU that changes the firewall: %v", err)
	}
	c.Spec.Linux.Namespaces = nil
	if args, err := d.arguments(c); err != nil || slices.Contains(args, "--network-lock") {
		t.Errorf("it in the network of the host: %q, %v", args, err)
	}
}

func TestExternalMounts(t *testing.T) {
	requested := []specs.Mount{
		{Destination: "/proc", Type: "proc"},
		{Destination: "/dev", Type: "tmpfs"},
		{Destination: "/dev/shm", Type: "bind", Options: []string{"rbind"}},
		{Destination: "/data", Type: "none", Options: []string{"rbind", "ro"}},
		{Destination: "/data/tmp/", Type: "tmpfs"},
	}
	spec := &specs.Spec{Linux: &specs.Linux{}}
	kinds := inside(spec)
	spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.CgroupNamespace}}
	if !slices.Contains(inside(spec), "cgroup") || slices.Contains(kinds, "cgroup") {
		t.Errorf("in a cgroup namespace: %q; otherwise %q", inside(spec), kinds)
	}
	for at, want := range map[string]bool{
		"tmpfs /dev": false, "tmpfs /dev/shm": true, "proc /proc/sys": false, "cgroup /sys/fs/cgroup/cpu": true, "ext4 /x": true,
		"tmpfs /data": true, "tmpfs /data/below": true, "tmpfs /data/tmp": false, "tmpfs /database": false, "devtmpfs /proc/kcore": true,
	} {
		kind, point, _ := strings.Cut(at, " ")
		if got := isExternal(&mountinfo.Info{FSType: kind, Mountpoint: point}, requested, kinds); got != want {
			t.Errorf("%s: %v", at, got)
		}
	}
}

// TestDifference: the changes of an overlay are in the archive with owners, modes and attributes; links are not followed,
// and what is deleted is in the list.
func TestDifference(t *testing.T) {
	require.Root(t)
	upper, host := t.TempDir(), t.TempDir()
	at := func(name string) string { return filepath.Join(upper, name) }
	if err := errors.Join(
		os.WriteFile(filepath.Join(host, "secret"), []byte("of the host"), 0o600),
		os.Mkdir(at("etc"), 0o751), os.WriteFile(at("etc/new"), []byte("text"), 0o640), os.Chown(at("etc/new"), 12, 34),
		unix.Setxattr(at("etc/new"), "user.berth", []byte("a\x00b"), 0), os.Chmod(at("etc/new"), 0o4755|os.ModeSetuid),
		os.Link(at("etc/new"), at("etc/second")), os.Symlink(host, at("etc/out")), os.Symlink("/etc/passwd", at("etc/passwd")),
		unix.Mknod(at("gone"), unix.S_IFCHR, 0), unix.Mknod(at("fifo"), unix.S_IFIFO|0o600, 0), unix.Mknod(at("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
		os.Mkdir(at("replaced"), 0o700), unix.Setxattr(at("replaced"), opaqueAttribute, []byte("y"), 0), os.WriteFile(at("replaced/only"), nil, 0o600),
	); err != nil {
		t.Fatal(err)
	}
	d := newDump(t, &Tool{})
	if err := d.writeDifference(t.Context(), upper); err != nil {
		t.Fatal(err)
	}
	var deleted []string
	if data, err := os.ReadFile(d.at(deletedEntry)); err != nil || json.Unmarshal(data, &deleted) != nil || !slices.Equal(deleted, []string{"/gone", "/replaced"}) {
		t.Errorf("deleted: %q, %v", deleted, err)
	}
	found := entries(t, d.at(diffEntry))
	want := []string{"etc/", "etc/new", "etc/out", "etc/passwd", "etc/second", "fifo", "null", "replaced/", "replaced/only"}
	if names := sortedNames(found); !slices.Equal(names, want) {
		t.Fatalf("the archive has %q", names)
	}
	if f := found["etc/new"]; f.text != "text" || f.Uid != 12 || f.Gid != 34 || f.Mode != 0o4755 || f.PAXRecords["SCHILY.xattr.user.berth"] != "a\x00b" {
		t.Errorf("a file: %+v", f)
	}
	if f := found["etc/second"]; f.Typeflag != tar.TypeLink || f.Linkname != "etc/new" {
		t.Errorf("its second name: %+v", f)
	}
	if f := found["etc/out"]; f.Typeflag != tar.TypeSymlink || f.Linkname != host {
		t.Errorf("a link: %+v", f)
	}
	if f := found["null"]; f.Typeflag != tar.TypeChar || f.Devmajor != 1 || f.Devminor != 3 {
		t.Errorf("a device: %+v", f)
	}
	if f := found["replaced/"]; f.PAXRecords[paxPrefix+opaqueAttribute] != "" {
		t.Errorf("a directory that replaces another: %+v", f)
	}

	if err := unix.Setxattr(at("etc"), overlayPrefix+"redirect", []byte("/usr"), 0); err != nil {
		t.Fatal(err)
	}
	if err := newDump(t, &Tool{}).writeDifference(t.Context(), upper); !errors.Is(err, errs.State) || !strings.Contains(err.Error(), "etc") {
		t.Errorf("a directory whose content is elsewhere: %v", err)
	}
}

// walk is a difference into an archive in memory.
func walk(t *testing.T) (*difference, *bytes.Buffer) {
	t.Helper()
	var data bytes.Buffer
	out := &bounded{to: &data, room: 1 << 20}
	return &difference{ctx: t.Context(), out: out, tar: tar.NewWriter(out), links: map[inode]string{}}, &data
}

// TestEntryIsSwapped: what a process puts in the place of an entry after its type is known is not opened. The FIFO has no
// writer, so that an open of it would wait for ever; the device has no driver, so that its open would fail.
func TestEntryIsSwapped(t *testing.T) {
	require.Root(t)
	for kind, swap := range map[string]func(string) error{
		"fifo":   func(at string) error { return unix.Mkfifo(at, 0o600) },
		"device": func(at string) error { return unix.Mknod(at, unix.S_IFCHR|0o600, int(unix.Mkdev(511, 255))) },
		"link":   func(at string) error { return os.Symlink("/etc", at) },
	} {
		t.Run(kind, func(t *testing.T) {
			upper := t.TempDir()
			if err := os.Mkdir(filepath.Join(upper, "dir"), 0o755); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"file", "dir/below"} {
				if err := os.WriteFile(filepath.Join(upper, name), []byte("text"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			dir, err := os.Open(upper)
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			w, data := walk(t)
			for _, name := range []string{"file", "dir"} {
				h, err := hold(dir, name)
				if err != nil {
					t.Fatal(err)
				}
				defer h.file.Close()
				at := filepath.Join(upper, name)
				if err := errors.Join(os.Rename(at, at+".moved"), swap(at)); err != nil {
					t.Fatal(err)
				}
				if err := w.held(h, 0); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			if err := w.tar.Close(); err != nil {
				t.Fatal(err)
			}
			found := readEntries(t, data)
			if names := sortedNames(found); !slices.Equal(names, []string{"dir/", "dir/below", "file"}) || found["file"].text != "text" || found["dir/below"].text != "text" {
				t.Errorf("the archive has %q: %+v", names, found)
			}
			// By their names now, they are written as what they are, and not opened.
			w, data = walk(t)
			if err := errors.Join(w.entry(dir, "file", 0), w.entry(dir, "dir", 0), w.tar.Close()); err != nil {
				t.Errorf("after the swap: %v", err)
			}
			for name, e := range readEntries(t, data) {
				if e.Typeflag == tar.TypeReg || e.Typeflag == tar.TypeDir {
					t.Errorf("after the swap: %s has type %c", name, e.Typeflag)
				}
			}
		})
	}
}

// TestDifferenceIsBounded: a tree that no program could open by its name is refused, and so is one that does not fit.
func TestDifferenceIsBounded(t *testing.T) {
	deep := func(name string, levels int) string {
		top := t.TempDir()
		t.Cleanup(func() {
			if err := sysfile.RemoveTree(context.Background(), top); err != nil {
				t.Error(err)
			}
		})
		at, err := unix.Open(top, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		for range levels {
			if err == nil {
				err = unix.Mkdirat(at, name, 0o700)
			}
			if err != nil {
				t.Fatal(err)
			}
			below, err := unix.Openat(at, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			unix.Close(at)
			if at = below; err != nil {
				t.Fatal(err)
			}
		}
		unix.Close(at)
		return top
	}
	for want, upper := range map[string]string{"directories in one another": deep("d", maxDepth+2), "a name of": deep(strings.Repeat("n", 255), 20)} {
		if err := newDump(t, &Tool{}).writeDifference(t.Context(), upper); !errors.Is(err, errs.State) || !strings.Contains(err.Error(), want) || len(err.Error()) > 400 {
			t.Errorf("%s: %v", want, err)
		}
	}
	upper := t.TempDir()
	if err := os.WriteFile(filepath.Join(upper, "sparse"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(upper, "sparse"), 1<<40); err != nil {
		t.Fatal(err)
	}
	d := newDump(t, &Tool{})
	if err := d.writeAtMost(t.Context(), upper, 1<<20); !errors.Is(err, errs.Exhausted) || !strings.Contains(err.Error(), "sparse has 1099511627776 bytes") {
		t.Errorf("a large file: %v", err)
	}
	if info, err := os.Stat(d.at(diffEntry)); err != nil || info.Size() > 1<<20 {
		t.Errorf("written: %v, %v", info, err)
	}
	if err := os.Remove(filepath.Join(upper, "sparse")); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if err := os.Mkdir(filepath.Join(upper, fmt.Sprint(i)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := newDump(t, &Tool{}).writeAtMost(t.Context(), upper, 4096); !errors.Is(err, errs.Exhausted) {
		t.Errorf("many files: %v", err)
	}
}

type entry struct {
	*tar.Header
	text string
}

func entries(t *testing.T, path string) map[string]entry {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return readEntries(t, f)
}

func readEntries(t *testing.T, from io.Reader) map[string]entry {
	t.Helper()
	found := map[string]entry{}
	for r := tar.NewReader(from); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		found[header.Name] = entry{header, string(text)}
	}
}

func sortedNames(found map[string]entry) []string {
	names := make([]string, 0, len(found))
	for name := range found {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// TestArchiveReplacesNothing: an archive appears whole, for root alone, and never in the place of another file, or through a
// link.
func TestArchiveReplacesNothing(t *testing.T) {
	dir := t.TempDir()
	location, other := filepath.Join(dir, "c.tar"), filepath.Join(dir, "other")
	a, err := newArchive(location)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.add(t.Context(), "x", 4, strings.NewReader("text")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(location); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is there before it is whole: %v", err)
	}
	// A daemon that is killed here leaves nothing, where the file system can do that.
	if left, err := os.ReadDir(dir); err != nil || a.named == "" && len(left) != 0 {
		t.Errorf("beside it: %v, %v", left, err)
	}
	if err := errors.Join(a.complete(), a.publish(), a.discard()); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(location); err != nil || info.Mode() != 0o600 || entries(t, location)["x"].text != "text" {
		t.Errorf("the archive: %v, %v", info, err)
	}
	if err := os.Symlink(other, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, taken := range []string{location, filepath.Join(dir, "link")} {
		if _, err := newArchive(taken); !errors.Is(err, errs.Exists) {
			t.Errorf("%s: %v", taken, err)
		}
	}
	if _, err := newArchive(filepath.Join(dir, "no", "c.tar")); !errors.Is(err, errs.Invalid) {
		t.Errorf("no directory: %v", err)
	}
	// The way of a file system where each file has a name.
	file, err := os.CreateTemp(dir, ".berth-checkpoint-")
	if err != nil {
		t.Fatal(err)
	}
	a = &archive{location: filepath.Join(dir, "named.tar"), file: file, named: file.Name(), tar: tar.NewWriter(file)}
	if err := errors.Join(a.complete(), a.publish(), a.discard(), os.Remove(a.location)); err != nil {
		t.Errorf("a file with a name: %v", err)
	}
	// Another file appears meanwhile.
	late := filepath.Join(dir, "late.tar")
	if a, err = newArchive(late); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, late); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.complete(), a.publish()); !errors.Is(err, errs.Exists) {
		t.Errorf("a file has appeared: %v", err)
	}
	if err := a.discard(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 3 {
		t.Errorf("left: %v, %v", left, err)
	}
}
