package logs

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/errs"
)

const twoWorkers = "pools: [{name: worker, count: 2}]\n"

// collector returns a collector, and creates the containers of a cluster.
func collector(t *testing.T, f *clustertest.Fake, text string) (Collector, *[]string) {
	t.Helper()
	f.MakeContainers(clustertest.Describe(t, text))
	reporter, said := f.Reporter()
	return Collector{Provider: f, Warn: reporter.Warn}, said
}

// TestLogs: the same files as kind writes, and those of /var/log.
func TestLogs(t *testing.T) {
	f := clustertest.New(t)
	c, _ := collector(t, f, "")
	dir := t.TempDir()
	if err := c.Collect(t.Context(), "dev", dir); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"podman-info.txt": "this is", "berth-version.txt": "", "dev-control-plane/serial.log": "log of dev-control-plane",
		"dev-control-plane/inspect.json": "this is dev-control-plane", "dev-control-plane/kubelet.log": "", "dev-control-plane/journal.log": "",
		"dev-control-plane/images.log": "", "dev-control-plane/kubernetes-version.txt": "v1.36.3", "dev-control-plane/cluster-events.txt": "",
		"dev-control-plane/pods/kube-system_etcd/0.log": "log of etcd",
	} {
		if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%s: %q, %v", file, got, err)
		}
	}
}

// TestLogsAreNotForOthers: the logs contain no proxy password. No other user can read them, even if
// the directory existed before.
func TestLogsAreNotForOthers(t *testing.T) {
	f := clustertest.New(t)
	c, _ := collector(t, f, "")
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "dev-control-plane"), 0o755); err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(dir, "dev-control-plane", "inspect.json")
	if err := os.WriteFile(old, []byte("of before"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := c.Collect(t.Context(), "dev", dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(old)
	if err != nil || strings.Contains(string(text), "geheim") || !strings.Contains(string(text), "@proxy:3128") {
		t.Errorf("%s, %v", text, err)
	}
	files := 0
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if mode := info.Mode().Perm(); path != dir && mode&0o077 != 0 {
			t.Errorf("%s has mode %o", path, mode)
		}
		files++
		return nil
	})
	if err != nil || files < 10 {
		t.Errorf("%d files, %v", files, err)
	}
}

// TestLogsOfHalfACluster: if some nodes are stopped or report nothing, the logs of the others are
// still collected.
func TestLogsOfHalfACluster(t *testing.T) {
	f := clustertest.New(t)
	c, said := collector(t, f, twoWorkers)
	if err := c.Provider.Stop(t.Context(), "dev-worker2"); err != nil {
		t.Fatal(err)
	}
	f.FailOn = "timeout 60 sh -c berth info"
	dir := t.TempDir()
	if err := c.Collect(t.Context(), "dev", dir); err != nil {
		t.Error(err)
	}
	for file, want := range map[string]bool{
		"dev-worker/journal.log": true, "dev-worker/berth-info.txt": true, "dev-worker2/serial.log": true, "dev-worker2/journal.log": false,
		"dev-worker/cluster-events.txt": false,
	} {
		if _, err := os.Stat(filepath.Join(dir, file)); (err == nil) != want {
			t.Errorf("%s: %v, want it: %v", file, err, want)
		}
	}
	if text := strings.Join(*said, "\n"); !strings.Contains(text, "berth-info.txt is not whole: "+clustertest.ErrFake.Error()) {
		t.Errorf("nobody is warned:\n%s", text)
	}
	if err := c.Collect(t.Context(), "none", dir); !errors.Is(err, errs.NotFound) {
		t.Errorf("a cluster that is none: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Collect(t.Context(), "dev", filepath.Join(dir, "file")); err == nil {
		t.Error("a directory that is a file is no error")
	}
}

// TestUnpack: no archive from a node writes outside of the directory.
func TestUnpack(t *testing.T) {
	var text bytes.Buffer
	w := tar.NewWriter(&text)
	for _, header := range []tar.Header{
		{Name: "./", Typeflag: tar.TypeDir},
		{Name: "./pods/a/0.log", Typeflag: tar.TypeReg, Size: 3, Mode: 0o000},
		{Name: "../../out", Typeflag: tar.TypeReg, Size: 3},
		{Name: "/abs", Typeflag: tar.TypeReg, Size: 3},
		{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "/etc"},
		{Name: "link/file", Typeflag: tar.TypeReg, Size: 3},
		{Name: "device", Typeflag: tar.TypeChar},
	} {
		if err := w.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
		if header.Size > 0 {
			if _, err := w.Write([]byte("log")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	above := t.TempDir()
	dir := filepath.Join(above, "a", "b")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unpack(dir, &text); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pods/a/0.log", "out", "abs", "link/file"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != "log" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "device")); err == nil {
		t.Error("a device was made")
	}
	if _, err := os.Stat(filepath.Join(above, "out")); err == nil {
		t.Error("a file lies above")
	}
	if err := unpack(dir, strings.NewReader(strings.Repeat("no archive", 100))); err == nil {
		t.Error("no archive is taken for one")
	}
	if err := os.Symlink("/etc", filepath.Join(dir, "etc")); err != nil {
		t.Fatal(err)
	}
	if err := unpackFile(mustRoot(t, dir), "etc/berth-unpacked", strings.NewReader("x")); err == nil {
		t.Error("a link led out")
	}
}

func mustRoot(t *testing.T, dir string) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}
