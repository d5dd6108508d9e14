package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/sys/mountinfo"

	"github.com/berthrun/berth/internal/errs"
)

const hybrid = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,release_agent=/lib/x,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`

const unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"

func TestFindsHierarchies(t *testing.T) {
	tree, err := parse(strings.NewReader(hybrid))
	if err != nil || tree.V2 {
		t.Fatalf("%+v, %v", tree, err)
	}
	want := Paths{
		"": "/sys/fs/cgroup/unified/pod", "cpu": "/sys/fs/cgroup/cpu,cpuacct/pod", "cpuacct": "/sys/fs/cgroup/cpu,cpuacct/pod",
		"memory": "/sys/fs/cgroup/memory/pod", "name=systemd": "/sys/fs/cgroup/systemd/pod",
	}
	if diff := cmp.Diff(want, tree.Paths("/pod")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(want.dirs()) != 4 {
		t.Errorf("directories %v, want each once", want.dirs())
	}
	tree, err = parse(strings.NewReader(unified))
	if err != nil || !tree.V2 || tree.Paths("/pod")[""] != "/sys/fs/cgroup/pod" {
		t.Errorf("%+v, %v", tree, err)
	}
	if _, err := parse(strings.NewReader("")); !errors.Is(err, errs.Unsupported) {
		t.Errorf("no cgroups: %v, want kind Unsupported", err)
	}
}

// TestRoots: each hierarchy is listed once. A hierarchy of which only a part is mounted is not.
func TestRoots(t *testing.T) {
	mounts := hybrid + `50 31 0:29 / /mnt/cpu rw - cgroup cgroup rw,cpu,cpuacct
51 31 0:40 /docker/a /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
`
	infos, err := mountinfo.GetMountsFromReader(strings.NewReader(mounts), mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"}
	if diff := cmp.Diff(want, rootsOf(infos)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOptionsOfAUnifiedHierarchy(t *testing.T) {
	for name, c := range map[string]struct{ mounts, want string }{
		"systemd's":    {unified, "nsdelegate memory_recursiveprot"},
		"two of one":   {unified + strings.Replace(unified, "/sys/fs/cgroup", "/elsewhere", 1), "nsdelegate memory_recursiveprot"},
		"none":         {strings.Replace(unified, ",nsdelegate,memory_recursiveprot", "", 1), ""},
		"of the mount": {strings.Replace(unified, "rw,nsdelegate", "rw,seclabel,favordynmods", 1), "favordynmods memory_recursiveprot"},
	} {
		got, err := optionsOf(strings.NewReader(c.mounts))
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if got, err := (&Tree{}).Options(); err != nil || got != nil {
		t.Errorf("on v1: %q, %v", got, err)
	}
}

func TestSlicePath(t *testing.T) {
	for slice, want := range map[string]string{
		"kubepods.slice":              "/kubepods.slice",
		"kubepods-burstable.slice":    "/kubepods.slice/kubepods-burstable.slice",
		"kubepods-besteffort-a.slice": "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-a.slice",
		"-.slice":                     "/",
	} {
		if got, err := SlicePath(slice); got != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", slice, got, err, want)
		}
	}
	for _, bad := range []string{"", ".slice", "a--b.slice", "a/b.slice", "a.scope"} {
		if _, err := SlicePath(bad); !errors.Is(err, errs.Invalid) {
			t.Errorf("%q: %v, want kind Invalid", bad, err)
		}
	}
}

// A plain file system stands for cgroups here, because directories are created and removed in the
// same way.
func TestMakeAndRemove(t *testing.T) {
	root := t.TempDir()
	tree := &Tree{mounts: map[string]string{"memory": filepath.Join(root, "memory"), "pids": filepath.Join(root, "pids")}}
	for _, dir := range tree.mounts {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if top := tree.Missing("/a/b/c"); top != "/a" {
		t.Errorf("missing from %q, want /a", top)
	}
	if err := tree.Make("/a/b/c"); err != nil {
		t.Fatal(err)
	}
	if err := tree.Make("/a/other"); err != nil {
		t.Fatal(err)
	}
	if top := tree.Missing("/a/b/c"); top != "" {
		t.Errorf("missing from %q, want nothing", top)
	}
	tree.RemoveEmpty("/a/b/c", "/a")
	if tree.Exists("/a/b") || !tree.Exists("/a") {
		t.Error("want /a/b gone, and /a there as long as another is in it")
	}
	for range 2 {
		if err := tree.Remove("/a"); err != nil {
			t.Errorf("Remove: %v", err)
		}
	}
	if tree.Exists("/a") {
		t.Error("/a is left")
	}
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
