package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWarmDoesNotWait: Warm returns at once, although the kernel takes time. One migration at a
// time is enough for the kernel.
func TestWarmDoesNotWait(t *testing.T) {
	procs := filepath.Join(t.TempDir(), "cgroup.procs")
	if err := unix.Mkfifo(procs, 0o600); err != nil { // a write waits for a reader
		t.Fatal(err)
	}
	w := &Warmer{own: func() string { return procs }}
	for range 100 {
		w.Warm()
	}
	reader, err := os.Open(procs)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	data := make([]byte, 200)
	n, err := reader.Read(data)
	if err != nil || string(data[:n]) != "0" {
		t.Fatalf("written: %q, %v; want one migration", data[:n], err)
	}
}

// TestProcsOf: Warm writes to this process's cgroup, in any mounted hierarchy except cpuset's.
func TestProcsOf(t *testing.T) {
	for name, test := range map[string]struct {
		mounts     map[string]string
		text, want string
	}{
		"v2":           {map[string]string{"": "/c"}, "0::/system.slice/berth.service\n", "/c/system.slice/berth.service/cgroup.procs"},
		"v2, a root":   {map[string]string{"": "/c"}, "0::/\n", "/c/cgroup.procs"},
		"v1":           {map[string]string{"cpu": "/c/cpu", "cpuset": "/c/cpuset"}, "5:cpuset:/a\n4:cpuacct,cpu:/b\n", "/c/cpu/b/cgroup.procs"},
		"v1, named":    {map[string]string{"name=systemd": "/c/systemd"}, "1:name=systemd:/x:y\n", "/c/systemd/x:y/cgroup.procs"},
		"cpuset alone": {map[string]string{"cpuset": "/c/cpuset"}, "5:cpuset:/a\n", ""},
		"not mounted":  {map[string]string{"": "/c"}, "3:pids:/a\n", ""},
		"no lines":     {map[string]string{"": "/c"}, "a\n1:2\n", ""},
	} {
		if got := (&Tree{mounts: test.mounts}).procsOf(strings.NewReader(test.text)); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
