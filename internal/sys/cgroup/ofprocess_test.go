package cgroup

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOfProcess(t *testing.T) {
	v1 := &Tree{mounts: map[string]string{
		"memory": "/sys/fs/cgroup/memory", "cpu": "/sys/fs/cgroup/cpu,cpuacct", "cpuacct": "/sys/fs/cgroup/cpu,cpuacct",
		"name=systemd": "/sys/fs/cgroup/systemd", "": "/sys/fs/cgroup/unified",
	}}
	v2 := &Tree{V2: true, mounts: map[string]string{"": "/sys/fs/cgroup"}}
	for _, c := range []struct {
		name, text string
		tree       *Tree
		want       Paths
	}{
		{"v2", "0::/kubepods/pod1/abc\n", v2, Paths{"": "/sys/fs/cgroup/kubepods/pod1/abc"}},
		{"v1", "5:memory:/a\n4:cpu,cpuacct:/b\n3:freezer:/c\n1:name=systemd:/d\n0::/e\n", v1, Paths{
			"memory": "/sys/fs/cgroup/memory/a", "cpu": "/sys/fs/cgroup/cpu,cpuacct/b", "cpuacct": "/sys/fs/cgroup/cpu,cpuacct/b",
			"name=systemd": "/sys/fs/cgroup/systemd/d", "": "/sys/fs/cgroup/unified/e",
		}},
		{"a colon in the path", "0::/a:b\n", v2, Paths{"": "/sys/fs/cgroup/a:b"}},
		{"damaged", "rubbish\n0::relative\n", v2, Paths{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, c.tree.parseOfProcess(c.text)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestCgroupsOfAContainer: the cgroup that a process is in is the container's, or below it, only if its
// path has the container's id. systemd in a container moves itself to init.scope. A zombie is in the roots of v1's hierarchies, and killing those would kill
// the host.
func TestCgroupsOfAContainer(t *testing.T) {
	for _, c := range []struct {
		name        string
		paths, want Paths
	}{
		{"cgroupfs", Paths{"memory": "/m/pod/abc", "pids": "/p/pod/abc"}, Paths{"memory": "/m/pod/abc", "pids": "/p/pod/abc"}},
		{"systemd", Paths{"": "/u/pod.slice/docker-abc.scope"}, Paths{"": "/u/pod.slice/docker-abc.scope"}},
		{"a hierarchy that the runtime does not use", Paths{"memory": "/m/pod/abc", "": "/u"}, Paths{"memory": "/m/pod/abc"}},
		{"a zombie", Paths{"memory": "/m", "pids": "/p"}, Paths{}},
		{"the pid of another container", Paths{"memory": "/m/pod/other"}, Paths{}},
		{"its own cgroup below", Paths{"": "/u/docker/abc/init.scope"}, Paths{"": "/u/docker/abc"}},
		{"its own cgroup below a scope", Paths{"": "/u/pod.slice/docker-abc.scope/a/b"}, Paths{"": "/u/pod.slice/docker-abc.scope"}},
		{"its own cgroup of the same name", Paths{"": "/u/docker/abc/system/abc"}, Paths{"": "/u/docker/abc"}},
		{"below in one hierarchy", Paths{"memory": "/m/abc", "name=systemd": "/s/abc/init.scope"}, Paths{"memory": "/m/abc", "name=systemd": "/s/abc"}},
	} {
		if diff := cmp.Diff(c.want, c.paths.named("abc")); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
	if got := (Paths{"memory": "/m"}).named(""); len(got) != 0 {
		t.Errorf("no id names %v", got)
	}
}
