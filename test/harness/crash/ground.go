package crash

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ground is what berth holds while it has no pods.
type ground struct {
	// things are mounts, network namespaces, cgroups, processes, and files of state.
	things []string
	fds    map[string]int
}

// groundState warms berth up, so that everything exists that it keeps, and takes the state.
func (c *test) groundState() ground {
	pod := c.b.RunPod("warm", "exit 0")
	c.b.AwaitExit(pod.Container)
	c.b.RemovePod(pod.Sandbox)
	var last ground
	c.b.Await("the ground state", func() bool {
		now := c.look()
		still := slices.Equal(last.things, now.things)
		last = now
		return still && !slices.ContainsFunc(now.things, ofWarmUp)
	})
	return last
}

// ofWarmUp reports whether a file is a record of the warm-up pod that berth deletes some time
// after the pod: tombstones in batches, attachments once their link is gone.
func ofWarmUp(thing string) bool {
	return strings.HasSuffix(thing, ".json") &&
		(strings.Contains(thing, "/tombstones/") || strings.Contains(thing, "/network/attachments/"))
}

// compareGround waits until everything is as it was.
func (c *test) compareGround(before ground) {
	var left string
	for deadline := time.Now().Add(require.Patience(30 * time.Second)); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if left = before.difference(c.look()); left == "" && c.pods() == 0 {
			return
		}
	}
	c.errorf("not as it was before, with %d pods listed:\n%s", c.pods(), left)
}

// pods returns how many sandboxes and containers are listed.
func (c *test) pods() int {
	ctx, cancel := context.WithTimeout(context.Background(), awayTimeout())
	defer cancel()
	sandboxes, err := c.runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return -1
	}
	containers, err := c.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return -1
	}
	return len(sandboxes.Items) + len(containers.Containers)
}

func (c *test) look() ground {
	all := harness.FindLeftovers(c.b.Dir)
	g := ground{fds: map[string]int{}}
	add := func(kind string, names []string) {
		for _, name := range names {
			g.things = append(g.things, kind+" "+name)
		}
	}
	add("mount", all.Mounts)
	add("netns", all.NetNS)
	add("cgroup", all.Cgroups)
	for _, process := range all.Processes {
		_, command, _ := strings.Cut(process, " ")
		if !strings.Contains(command, "crash.test") {
			g.things = append(g.things, "process "+command)
		}
	}
	for _, dir := range []string{"state/pods", "state/engine", "state/network", "state/supervisor", "state/images", "root/pods", "root/network", "root/containers", "root/sandboxes"} {
		add("file", files(filepath.Join(c.b.Dir, dir)))
	}
	slices.Sort(g.things)
	p := c.processes()
	for name, pid := range map[string]int{"daemon": p.daemon, "supervisor": p.supervisor, "keeper": p.keeper} {
		for _, target := range descriptors(pid) {
			g.fds[name+" "+target]++
		}
	}
	return g
}

// files lists the files below a directory.
func files(dir string) []string {
	var all []string
	_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			all = append(all, path)
		}
		return nil
	})
	return all
}

// descriptors are the targets of a process's descriptors, without inode numbers.
func descriptors(pid int) []string {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, _ := os.ReadDir(dir)
	var all []string
	for _, entry := range entries {
		target, err := os.Readlink(filepath.Join(dir, entry.Name()))
		if err != nil {
			continue
		}
		if strings.HasPrefix(target, "/sys/fs/cgroup/cpu") || strings.HasPrefix(target, "/sys/fs/cgroup/") && strings.HasSuffix(target, "/cpu.max") {
			continue // Go's own: it follows the limits of the cgroup in which it was started
		}
		if strings.HasSuffix(target, "/fd") { // /proc/PID/fd, which a supervisor keeps: each has another pid
			target = "/proc/*/fd"
		}
		kind, _, special := strings.Cut(target, ":[")
		if special {
			target = kind
		}
		all = append(all, target)
	}
	return all
}

// difference returns what was added or removed, "" if nothing was.
func (g ground) difference(now ground) string {
	var b strings.Builder
	for _, thing := range now.things {
		if !slices.Contains(g.things, thing) {
			fmt.Fprintf(&b, "  more: %s\n", thing)
		}
	}
	for _, thing := range g.things {
		if !slices.Contains(now.things, thing) {
			fmt.Fprintf(&b, "  less: %s\n", thing)
		}
	}
	for name, n := range now.fds {
		if n > g.fds[name] {
			fmt.Fprintf(&b, "  descriptors: %s: %d, were %d\n", name, n, g.fds[name])
		}
	}
	return b.String()
}
