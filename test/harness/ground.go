package harness

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/berthapi"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Ground counts what an instance holds, by name. Names have no ids and numbers, because these
// change when one object replaces another (a pooled namespace, for example).
type Ground map[string]int

// idPattern finds ids, and parts of names that are made from one.
var idPattern = regexp.MustCompile(`\b[0-9a-z]{26}\b|[0-9a-f]{8,}|\b[0-9a-f]*[0-9][0-9a-f]*\b|:\[[0-9]+\]`)

// Ground counts everything that the running instance holds: what CRI lists, jobs, mounts,
// namespaces, cgroups, processes, files of state and root, links, firewall rules, and the
// descriptors of its processes.
func (b *Berth) Ground() Ground {
	b.T.Helper()
	g := Ground{}
	add := func(kind string, names ...string) {
		for _, name := range names {
			g[kind+" "+idPattern.ReplaceAllString(strings.ReplaceAll(name, b.Dir, ""), "*")]++
		}
	}
	b.addListed(add)
	left := FindLeftovers(b.Dir)
	add("mount", left.Mounts...)
	add("netns", left.NetNS...)
	add("cgroup", left.Cgroups...)
	for _, process := range left.Processes {
		_, command, _ := strings.Cut(process, " ")
		add("process", command)
	}
	// Content and layers of images are below images/ under generated names.
	for _, dir := range []string{
		filepath.Join(b.State, "pods"), filepath.Join(b.State, "engine"), filepath.Join(b.State, "network"),
		filepath.Join(b.State, "images"), filepath.Join(b.State, "supervisor"),
		filepath.Join(b.Root, "pods"), filepath.Join(b.Root, "network"), filepath.Join(b.Root, "images"),
	} {
		add("file", slices.DeleteFunc(filesBelow(dir), func(name string) bool {
			// It is there while nothing has been written for a moment: see package image/repair.
			return name == filepath.Join(b.Root, "images", "closed")
		})...)
	}
	b.addNetwork(add)
	for name, pid := range map[string]int{"daemon": b.DaemonPid(), "supervisor": b.SupervisorPid(), "keeper": b.KeeperPid()} {
		for _, target := range descriptorsOf(pid) {
			// The daemon keeps connections to a Docker engine, more or fewer.
			pooled := b.Docker != nil && strings.HasPrefix(target, "socket:")
			if !collected(target) && !pooled {
				add("descriptor of the "+name, target)
			}
		}
	}
	return g
}

// addNetwork adds the links, routes and firewall rules of the instance's host.
func (b *Berth) addNetwork(add func(kind string, names ...string)) {
	b.T.Helper()
	for _, command := range [][]string{{"ip", "-o", "link"}, {"ip", "-o", "route"}, {"nft", "-s", "list", "ruleset"}} {
		out, err := b.InHost(command[0], command[1:]...).Output()
		if err != nil {
			b.T.Fatalf("%s: %v", strings.Join(command, " "), err)
		}
		for line := range strings.Lines(string(out)) {
			fields := strings.Fields(line)
			if command[len(command)-1] == "link" {
				fields = fields[1:2] // its state changes with its peers
			}
			add(command[0], strings.TrimSuffix(strings.Join(fields, " "), " linkdown"))
		}
	}
}

// addListed adds what the instance lists by CRI and berth's own service.
func (b *Berth) addListed(add func(kind string, names ...string)) {
	b.T.Helper()
	sandboxes, err := b.Runtime.ListPodSandbox(b.Ctx(), &runtimeapi.ListPodSandboxRequest{})
	must(b.T, err)
	for _, sandbox := range sandboxes.Items {
		add("sandbox", sandbox.Metadata.Name+" "+sandbox.State.String())
	}
	containers, err := b.Runtime.ListContainers(b.Ctx(), &runtimeapi.ListContainersRequest{})
	must(b.T, err)
	for _, container := range containers.Containers {
		add("container", container.Metadata.Name+" "+container.State.String())
	}
	images, err := b.Images.ListImages(b.Ctx(), &runtimeapi.ListImagesRequest{})
	must(b.T, err)
	for _, image := range images.Images {
		add("image", strings.Join(image.RepoTags, ","))
	}
	jobs, err := berthapi.NewClient(b.conn).ListJobs(b.Ctx())
	must(b.T, err)
	for _, job := range jobs {
		add("job", job.Kind+" "+job.Key)
	}
}

// AwaitGround waits until the instance has what it had before. It returns the differences if
// that takes longer than within.
func (b *Berth) AwaitGround(before Ground, within time.Duration) (differences string) {
	b.T.Helper()
	for deadline := time.Now().Add(within); ; time.Sleep(20 * time.Millisecond) { // no event reports all these
		if differences = before.Differences(b.Ground()); differences == "" || time.Now().After(deadline) {
			return differences
		}
	}
}

// StillGround waits until two snapshots, taken a moment apart, are equal.
func (b *Berth) StillGround() Ground {
	b.T.Helper()
	last := b.Ground()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		time.Sleep(700 * time.Millisecond) // longer than berth collects tombstones before it writes them
		now := b.Ground()
		if maps.Equal(last, now) {
			return now
		}
		last = now
	}
	b.T.Fatal("the state of the instance does not become stable")
	return nil
}

// Differences returns what was added or removed, "" if nothing was.
func (g Ground) Differences(now Ground) string {
	keys := slices.Collect(maps.Keys(g))
	for key := range now {
		if _, known := g[key]; !known {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	var b strings.Builder
	for _, key := range keys {
		if g[key] != now[key] {
			fmt.Fprintf(&b, "  %s: %d, was %d\n", key, now[key], g[key])
		}
	}
	return b.String()
}

func filesBelow(dir string) []string {
	var all []string
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil // gone since it was listed
		case entry.IsDir() && entry.Name() == "merged", entry.IsDir() && entry.Name() == "fs":
			all = append(all, path)
			return fs.SkipDir // the content of images and containers
		}
		all = append(all, path)
		return nil
	})
	return all
}

// collected reports descriptors that Go's garbage collector closes: those of processes that
// libcontainer started and does not wait for, of the FIFOs of inits that failed, and of the file with
// which containerd's content store tests a file system. The leak test checks that they do not
// accumulate.
func collected(target string) bool {
	return target == "anon_inode:[pidfd]" || strings.HasSuffix(target, "exec.fifo (deleted)") || strings.Contains(target, "/.fsverity-check-")
}

func descriptorsOf(pid int) []string {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, _ := os.ReadDir(dir)
	var all []string
	for _, entry := range entries {
		if target, err := os.Readlink(filepath.Join(dir, entry.Name())); err == nil {
			all = append(all, target)
		}
	}
	return all
}
