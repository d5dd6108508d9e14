//go:build integration

package local

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/helper/program"
	"github.com/berthrun/berth/internal/image/imagetest"
)

const (
	crashWorkerArg = "crash-worker"
	pullWorkerArg  = "pull-worker"
	crashRounds    = 40
	crashImages    = 4
)

// crashSpec is an image whose damaged layers can be recognized, because each file contains its own
// name.
func crashSpec(i int) imagetest.Spec {
	spec := imagetest.Spec{Name: fmt.Sprintf("crash%d:1", i), Compression: "gzip"}
	for l := range 3 {
		layer := imagetest.Layer{{Path: "d", Dir: true}}
		for f := range 20 {
			// All images have the same lowest layer.
			name := fmt.Sprintf("d/%d-%d-%d", l, f, i*l)
			layer = append(layer, imagetest.File{Path: name, Content: []byte(strings.Repeat(name, 500))})
		}
		spec.Layers = append(spec.Layers, layer)
	}
	return spec
}

// crashWorker uses a store until it is killed: args are root, state, registry and
// the helper.
func crashWorker(args []string) {
	ctx := context.Background()
	fail := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	s, err := openInWorker(ctx, args[0], args[1], args[3:])
	fail(err)
	for n := 0; ; n++ {
		i := rand.IntN(crashImages)
		var id string
		if n%2 == 0 {
			id, err = s.Pull(ctx, fmt.Sprintf("%s/crash%d:1", args[2], i), image.Auth{}, nil)
			fail(err)
		} else {
			var archive bytes.Buffer
			fail(imagetest.Archive(&archive, crashSpec(i)))
			list, err := s.Import(ctx, &archive, "", true, nil)
			fail(err)
			id = list[0].ID
		}
		key := fmt.Sprint("k", rand.IntN(6))
		fail(s.Release(ctx, key))
		_, err = s.Prepare(ctx, image.RootfsSpec{Key: key, ImageID: id})
		fail(err)
		if rand.IntN(3) == 0 {
			fail(s.Remove(ctx, id))
		}
		if n == 0 {
			fmt.Println("once")
		}
	}
}

// openInWorker opens a store, and says so.
func openInWorker(ctx context.Context, root, state string, helper []string) (*Images, error) {
	s, err := Open(ctx, Config{
		Root: root, State: state, Snapshotter: Snapshotter(os.Getenv("BERTH_SNAPSHOTTER")), UnpackHelper: program.Command(helper), CgroupParent: "/berth-image-test", Log: slog.New(slog.DiscardHandler),
	})
	if err == nil {
		fmt.Println("open")
	}
	return s, err
}

// pullWorker pulls the images whose references come in lines, those of one line side by side. It prints a line for each, and
// "done" after those of a line. It ends with its input. args are root, state, "-" and the helper.
func pullWorker(args []string) {
	ctx := context.Background()
	s, err := openInWorker(ctx, args[0], args[1], args[3:])
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var pulls sync.WaitGroup
		for _, ref := range strings.Fields(lines.Text()) {
			pulls.Go(func() {
				if _, err := s.Pull(ctx, ref, image.Auth{}, nil); err != nil {
					fmt.Println("failed", ref, strings.ReplaceAll(err.Error(), "\n", " "))
					return
				}
				fmt.Println("pulled", ref)
			})
		}
		pulls.Wait()
		fmt.Println("done")
	}
	if err := s.Close(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func TestKillAtAnyMoment(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	cfg := testConfig(t)
	r := &imagetest.Registry{}
	host := serve(t, r)
	for i := range crashImages {
		r.Push(fmt.Sprint("crash", i), "1", build(t, crashSpec(i)))
	}
	// On any machine, some rounds end before the first image is complete, and some after.
	window := max(250*time.Millisecond, 2*turnTime(t, cfg, host))
	found := verifyStore(t, cfg, -1)
	for round := range crashRounds {
		killWorker(t, cfg, host, time.Duration(random.Int64N(int64(window))))
		found += verifyStore(t, cfg, round)
	}
	if found == 0 {
		t.Error("no round left an image or a root filesystem: the test tests nothing")
	}
	s := open(t, cfg)
	ctx := context.Background()
	list, err := s.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := s.Keys(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, img := range list {
		if err := s.Remove(ctx, img.ID); err != nil {
			t.Error(err)
		}
	}
	for _, key := range keys {
		if err := s.Release(ctx, key); err != nil {
			t.Error(err)
		}
	}
	for i := range crashImages { // what a killed pull has finished stays for the next one
		if err := pullAndRemove(ctx, s, fmt.Sprintf("%s/crash%d:1", host, i)); err != nil {
			t.Error(err)
		}
	}
	s.Close()
	assertEmpty(t, s)
	if left, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup/memory/berth-image-test", cgroupPrefix(cfg.Root)+"-*")); len(left) > 0 {
		t.Errorf("cgroups left: %v", left)
	}
}

// pullAndRemove pulls an image and removes it. Unfinished downloads of it are used up.
func pullAndRemove(ctx context.Context, s *Images, ref string) error {
	_, err := s.Pull(ctx, ref, image.Auth{}, nil)
	return errors.Join(err, s.Remove(ctx, ref))
}

// worker is a process that uses the store, and its output.
type worker struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

// startWorker starts a worker and returns when it has opened the store.
func startWorker(t *testing.T, cfg Config, host string) *worker {
	t.Helper()
	return startWorkerWith(t, cfg, crashWorkerArg, host, nil)
}

// startWorkerWith starts a worker of a kind with an input.
func startWorkerWith(t *testing.T, cfg Config, kind, host string, in io.Reader) *worker {
	t.Helper()
	args := append([]string{kind, cfg.Root, cfg.State, host}, helper...)
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Stdin = in
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w := &worker{t: t, cmd: cmd, lines: bufio.NewScanner(out)}
	w.expect("open")
	return w
}

func (w *worker) expect(line string) {
	w.t.Helper()
	if !w.lines.Scan() || w.lines.Text() != line {
		w.t.Errorf("the worker failed: %q, want %q", w.lines.Text(), line)
	}
}

// kill ends the worker. Any output except the end of its first turn is a failure.
func (w *worker) kill() {
	w.t.Helper()
	if err := w.cmd.Process.Kill(); err != nil {
		w.t.Fatal(err)
	}
	for w.lines.Scan() {
		if w.lines.Text() != "once" {
			w.t.Errorf("the worker failed: %s", w.lines.Text())
		}
	}
	_ = w.cmd.Wait()
}

// killWorker starts a worker and kills it while it works.
func killWorker(t *testing.T, cfg Config, host string, after time.Duration) {
	t.Helper()
	w := startWorker(t, cfg, host)
	time.Sleep(after)
	w.kill()
}

// turnTime is how long a worker's first turn takes on this machine now.
func turnTime(t *testing.T, cfg Config, host string) time.Duration {
	t.Helper()
	w := startWorker(t, cfg, host)
	begin := time.Now()
	w.expect("once")
	took := time.Since(begin)
	w.kill()
	return took
}

// verifyStore opens the store of a killed worker and checks that it is complete. It returns the
// number of images and of root filesystems.
func verifyStore(t *testing.T, cfg Config, round int) int {
	t.Helper()
	ctx := context.Background()
	s, err := Open(ctx, cfg)
	if err != nil {
		t.Fatalf("round %d: %v", round, err)
	}
	defer s.Close()
	if left, _ := filepath.Glob(filepath.Join(cfg.Root, "snapshots/snapshots/new-*")); len(left) > 0 {
		t.Errorf("round %d: left: %v", round, left)
	}
	// No layer is large enough to be continued, but one that has all its bytes is not fetched again.
	ingests, _ := filepath.Glob(filepath.Join(cfg.Root, "content/ingest/*"))
	for _, dir := range ingests {
		data, err := os.Stat(filepath.Join(dir, "data"))
		total, totalErr := os.ReadFile(filepath.Join(dir, "total"))
		if err = errors.Join(err, totalErr); err != nil || fmt.Sprint(data.Size()) != string(total) {
			t.Errorf("round %d: left: %s, %v", round, dir, err)
		}
	}
	list, err := s.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, img := range list {
		m, err := s.Prepare(ctx, image.RootfsSpec{Key: "verify", ImageID: img.ID})
		if err != nil {
			t.Errorf("round %d: %v", round, err)
			continue
		}
		verifyFiles(t, round, m.Path)
		if err := s.Release(ctx, "verify"); err != nil {
			t.Error(err)
		}
	}
	keys, err := s.Keys(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		// Root filesystems of removed images can be mounted again, too.
		m, err := s.Prepare(ctx, image.RootfsSpec{Key: key, ImageID: recordedImage(t, s, key)})
		if err != nil {
			t.Errorf("round %d: key %s: %v", round, key, err)
			continue
		}
		verifyFiles(t, round, m.Path)
	}
	return len(list) + len(keys)
}

// recordedImage returns the image that a root filesystem's record names.
func recordedImage(t *testing.T, s *Images, key string) string {
	t.Helper()
	var record struct {
		Image string `json:"image"`
	}
	data, err := os.ReadFile(filepath.Join(s.rootfs.ContainersDir(), key, "image"))
	if err == nil {
		err = json.Unmarshal(data, &record)
	}
	if err != nil {
		t.Errorf("the record of %s: %v", key, err)
	}
	return record.Image
}

func verifyFiles(t *testing.T, round int, root string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, "d"))
	if err != nil || len(entries) != 60 {
		t.Errorf("round %d: %d files, %v", round, len(entries), err)
	}
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(root, "d", entry.Name()))
		if err != nil || string(data) != strings.Repeat("d/"+entry.Name(), 500) {
			t.Errorf("round %d: file %s is damaged: %v", round, entry.Name(), err)
		}
	}
}
