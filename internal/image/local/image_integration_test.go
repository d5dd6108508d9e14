//go:build integration

package local

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/helper/program"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/require"
)

// helper is the unpack helper, built once for all tests.
var helper program.Command

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == crashWorkerArg {
		crashWorker(os.Args[2:])
		return
	}
	if len(os.Args) > 1 && os.Args[1] == pullWorkerArg {
		pullWorker(os.Args[2:])
		return
	}
	if len(os.Args) > 1 && os.Args[1] == damageWorkerArg {
		damageWorker()
		return
	}
	os.Exit(imagetest.RunWithUnpackHelper(m, &helper))
}

func testConfig(t *testing.T) Config {
	t.Helper()
	require.Root(t)
	dir := t.TempDir()
	// What is lost of images of archives must not be looked for in the internet.
	hosts := filepath.Join(dir, "hosts", "docker.io")
	if err := errors.Join(os.MkdirAll(hosts, 0o755), os.WriteFile(filepath.Join(hosts, "hosts.toml"), []byte("server = \"http://127.0.0.1:1\"\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	return Config{
		Root:         filepath.Join(dir, "root"),
		State:        filepath.Join(dir, "state"),
		Snapshotter:  Snapshotter(os.Getenv("BERTH_SNAPSHOTTER")),
		PullRules:    PullRules{RegistryConfigDirs: []string{filepath.Dir(hosts)}},
		UnpackHelper: helper,
		ReadyRootfs:  4,
		CgroupParent: "/berth-image-test",
		Log:          slog.New(slog.NewTextHandler(testWriter{t}, nil)),
	}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(string(bytes.TrimSpace(p)))
	return len(p), nil
}

func open(t *testing.T, cfg Config) *Images {
	t.Helper()
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		keys, err := s.Keys(context.Background())
		for _, key := range keys {
			err = errors.Join(err, s.Release(context.Background(), key))
		}
		if err := errors.Join(err, s.Close()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func archiveOf(t testing.TB, specs ...imagetest.Spec) *bytes.Buffer {
	t.Helper()
	var buf bytes.Buffer
	if err := imagetest.Archive(&buf, specs...); err != nil {
		t.Fatal(err)
	}
	return &buf
}

func TestImportPrepareReleaseRemove(t *testing.T) {
	ctx := context.Background()
	s := open(t, testConfig(t))
	list, err := s.Import(ctx, archiveOf(t, imagetest.Spec{
		Name: "hello:1",
		Layers: []imagetest.Layer{
			{{Path: "a", Content: []byte("low")}, {Path: "b", Content: []byte("low")}, {Path: "d/x"}},
			{{Path: "a", Content: []byte("high")}, imagetest.Whiteout("b"), imagetest.Opaque("d"), {Path: "d/y"}},
		},
		Cmd: []string{"/a"},
	}), "", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 || len(list[0].Tags) != 1 || list[0].Tags[0] != "docker.io/library/hello:1" || !list[0].Pinned {
		t.Fatalf("imported %+v", list)
	}
	id := list[0].ID
	m, err := s.Prepare(ctx, image.RootfsSpec{Key: "c1", ImageID: id})
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(m.Path, "a")); err != nil || string(data) != "high" {
		t.Errorf("a: %q, %v", data, err)
	}
	for _, gone := range []string{"b", "d/x"} {
		if _, err := os.Lstat(filepath.Join(m.Path, gone)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s should be deleted by the upper layer: %v", gone, err)
		}
	}
	if err := os.WriteFile(filepath.Join(m.Path, "w"), make([]byte, 10_000), 0o600); err != nil {
		t.Fatal(err)
	}
	if u, err := s.WritableUsage(ctx, "c1", nil); err != nil || u.Bytes < 10_000 {
		t.Errorf("writable usage %+v, %v", u, err)
	}
	if err := s.Remove(ctx, "hello:1"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(ctx, id); !errors.Is(err, errs.NotFound) {
		t.Errorf("removed image: %v", err)
	}
	if _, err := os.ReadFile(filepath.Join(m.Path, "a")); err != nil {
		t.Errorf("the container of a removed image lost its files: %v", err)
	}
	if err := s.Release(ctx, "c1"); err != nil {
		t.Fatal(err)
	}
	s.Close()
	assertEmpty(t, s)
}

// assertEmpty checks the disk of a closed store.
func assertEmpty(t *testing.T, s *Images) {
	t.Helper()
	for _, pattern := range []string{"content/blobs/sha256/*", "content/ingest/*", "snapshots/snapshots/*", "containers/*", "trash/*", "unsynced/*"} {
		left, err := filepath.Glob(filepath.Join(s.cfg.Root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		if len(left) > 0 {
			t.Errorf("left on disk: %v", left)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(s.cfg.State, "rootfs/*")); len(left) > 0 {
		t.Errorf("left in state: %v", left)
	}
}
