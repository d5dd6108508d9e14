package selinux

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const layers = "system_u:object_r:container_ro_file_t:s0"

func testStore(t *testing.T, dir string) {
	t.Helper()
	if err := labelStore(t.Context(), NewRelabeller(testAttribute).forStore("container_file_t"), dir, layers, nil); err != nil {
		t.Fatal(err)
	}
}

func setLabel(t *testing.T, path, label string) {
	t.Helper()
	if err := syscall.Setxattr(path, testAttribute, []byte(label), 0); err != nil {
		t.Fatal(err)
	}
}

func TestLabelStoreCreatesTheDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "root", "images")
	testStore(t, dir)
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	if got := labelOf(t, dir); got != layers {
		t.Errorf("a new store is labelled %q", got)
	}
	testStore(t, dir)
}

// The layers of a store from an earlier version are labelled once. Files that containers wrote keep
// their labels. The daemon starts even if a container created a directory too deep to walk.
func TestLabelStoreOfAnEarlierVersion(t *testing.T) {
	dir := makeTree(t, 4, 4)
	written, layer := filepath.Join(dir, "d0/sub/0"), filepath.Join(dir, "d1/sub/0")
	const label = "system_u:object_r:container_file_t:s0:c1,c2"
	setLabel(t, written, label+"\x00")
	setLabel(t, layer, "system_u:object_r:var_lib_t:s0")
	deep := filepath.Join(dir, strings.Repeat("d/", maxDepth+10))
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	testStore(t, dir)
	if got := labelOf(t, written); got != label+"\x00" {
		t.Errorf("what a container wrote is labelled %q", got)
	}
	for _, path := range []string{dir, layer, filepath.Join(dir, "d0"), filepath.Join(dir, "d0/sub"), filepath.Join(dir, "d/d")} {
		if got := labelOf(t, path); got != layers {
			t.Errorf("%s is labelled %q", path, got)
		}
	}
	if got := labelOf(t, deep); got != "" {
		t.Errorf("what is too deep is labelled %q", got)
	}
	setLabel(t, layer, "other")
	testStore(t, dir)
	if got := labelOf(t, layer); got != "other" {
		t.Errorf("a store with the label was walked again: %q", got)
	}
	setLabel(t, dir, "system_u:object_r:var_lib_t:s0") // the host's labels were restored
	testStore(t, dir)
	if got := labelOf(t, layer); got != layers {
		t.Errorf("a store whose top lost the label was not walked: %q", got)
	}
}
