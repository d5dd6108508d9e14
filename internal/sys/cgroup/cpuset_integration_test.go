//go:build integration

package cgroup

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berthrun/berth/internal/require"
)

// TestCpusetsAreInherited: nobody needs to write the cpuset of a pod or of a container on v1.
func TestCpusetsAreInherited(t *testing.T) {
	require.Root(t)
	tree, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	mount := tree.mounts["cpuset"]
	if mount == "" {
		return // v2 has no cpusets without processors
	}
	root := string(contentOf(filepath.Join(mount, "cgroup.clone_children")))
	top := "/berth-cpuset-" + filepath.Base(t.TempDir()) + filepath.Base(filepath.Dir(t.TempDir()))
	pod := top + "/pod"
	t.Cleanup(func() { tree.RemoveEmpty(pod, top) })
	if err := tree.Make(pod); err != nil {
		t.Fatal(err)
	}
	container := filepath.Join(mount, pod, "container")
	if err := os.Mkdir(container, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(container)
	for _, dir := range []string{filepath.Join(mount, pod), container} {
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
			if got, want := contentOf(filepath.Join(dir, name)), contentOf(filepath.Join(mount, name)); string(got) != string(want) || len(got) == 0 {
				t.Errorf("%s of %s is %q, %q is the host's", name, dir, got, want)
			}
		}
	}
	if err := (Paths{"cpuset": container}).EndInheritance(); err != nil {
		t.Error(err)
	}
	if flag := string(contentOf(filepath.Join(container, "cgroup.clone_children"))); flag != "0" {
		t.Errorf("clone_children of a container is %q", flag)
	}
	if now := string(contentOf(filepath.Join(mount, "cgroup.clone_children"))); now != root {
		t.Errorf("clone_children of the hierarchy was %q and is %q", root, now)
	}
}
