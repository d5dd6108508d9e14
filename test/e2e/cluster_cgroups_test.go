//go:build e2e

package e2e

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const unified = "/sys/fs/cgroup"

// inGroups: each node manages a part of the cgroup tree, with all controllers and its pods in it.
// No process of a node is anywhere else.
func (h *clusterHost) inGroups(t *testing.T, b *harness.Berth) {
	require.CgroupV2(t)
	b.T = t
	defer func() { b.T = h.t }()
	list, err := b.Runtime.ListContainers(b.Ctx(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, container := range list.Containers {
		if name := container.Labels[provider.LabelNode]; name != "" {
			all = append(all, group(t, container.Id))
			divided(t, b, name, container.Id)
		}
	}
	outside := func(dir string) bool {
		return !slices.ContainsFunc(all, func(group string) bool { return dir == group || strings.HasPrefix(dir, group+"/") })
	}
	limited := 0
	for _, dir := range groups(t) {
		if strings.Contains(dir, "kube") && outside(dir) {
			t.Errorf("%s is in no node", dir)
		}
		// The limit of CoreDNS, as kubeadm sets it.
		if limit, err := os.ReadFile(filepath.Join(dir, "memory.max")); err == nil && strings.TrimSpace(string(limit)) == "178257920" {
			limited++
		}
	}
	if limited == 0 {
		t.Error("no container has the limit of CoreDNS")
	}
	for _, node := range all {
		for _, pid := range descendants(t, processOf(t, node+"/init.scope")) {
			text, err := os.ReadFile("/proc/" + pid + "/cgroup")
			if err != nil {
				continue // it has ended
			}
			if dir := unified + strings.TrimPrefix(strings.TrimSpace(string(text)), "0::"); outside(dir) {
				t.Errorf("process %s of the node in %s is in %s", pid, node, dir)
			}
		}
	}
}

// divided: systemd and the kubelet of a node see only that node's cgroups. They have all
// controllers that the host delegates.
func divided(t *testing.T, b *harness.Berth, name, container string) {
	t.Helper()
	if got := b.ExecOut(container, "cat /proc/1/cgroup"); got != "0::/init.scope" {
		t.Errorf("systemd of %s is in %q", name, got)
	}
	pods := strings.Fields(b.ExecOut(container, "find /sys/fs/cgroup -type d -name '*kubepods*-pod*.slice'"))
	if len(pods) == 0 {
		t.Errorf("%s has no pods", name)
	}
	for _, dir := range pods {
		if !strings.HasPrefix(dir, "/sys/fs/cgroup/kubelet.slice/kubelet-kubepods.slice/") {
			t.Errorf("%s has a pod at %s", name, dir)
		}
	}
	for _, dir := range []string{"", "/kubelet.slice", "/kubelet.slice/kubelet-kubepods.slice"} {
		handed := strings.Fields(b.ExecOut(container, "cat /sys/fs/cgroup"+dir+"/cgroup.subtree_control"))
		for _, controller := range []string{"cpu", "cpuset", "io", "memory", "pids"} {
			if !slices.Contains(handed, controller) {
				t.Errorf("%s%s hands %q down, and not %s", name, dir, handed, controller)
			}
		}
	}
}

// group returns a container's cgroup on the host.
func group(t *testing.T, container string) string {
	t.Helper()
	for _, dir := range groups(t) {
		if strings.Contains(filepath.Base(dir), container) {
			return dir
		}
	}
	t.Fatalf("container %s has no cgroup", container)
	return ""
}

// groups returns all cgroups of the host.
func groups(t *testing.T) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(unified, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return fs.SkipDir // it has ended meanwhile
		case entry.IsDir():
			all = append(all, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func processOf(t *testing.T, group string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
	if err != nil || len(text) == 0 {
		t.Fatalf("%s has no process: %v", group, err)
	}
	return strings.Fields(string(text))[0]
}

// descendants are a process, its children, and their descendants.
func descendants(t *testing.T, pid string) []string {
	t.Helper()
	children := map[string][]string{}
	status, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range status {
		text, _ := os.ReadFile(file) // it may have ended
		if _, rest, found := strings.Cut(string(text), "\nPPid:\t"); found {
			parent, _, _ := strings.Cut(rest, "\n")
			children[parent] = append(children[parent], filepath.Base(filepath.Dir(file)))
		}
	}
	all := []string{pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}
