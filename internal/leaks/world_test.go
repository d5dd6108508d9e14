package leaks

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/nftables"

	"github.com/berthrun/berth/internal/errs"
)

// The ids of a sandbox and a container with records, of a pod without, and of another runtime.
var (
	sandboxID   = strings.Repeat("a1", 32)
	containerID = strings.Repeat("b2", 32)
	lostID      = strings.Repeat("c3", 32)
	foreignID   = strings.Repeat("d4", 32)
)

// world is a machine: directories that are real, and a kernel that is not.
type world struct {
	t           *testing.T
	state, root string
	netnsDir    string
	confDir     string

	mu       sync.Mutex
	mounts   []Mount
	cgroups  map[string][]Cgroup
	links    []Link
	elements []Element
	// elsewhere: berth has other namespaces.
	elsewhere bool
	// listed is called before each list of the kernel's objects, with what is listed.
	listed func(what string)
	// removed counts removals.
	removed int

	// answer and asked are what berth answers; it does not run if asked is nil.
	answer Answer
	asked  func(Answer) (Answer, error)
}

// newWorld is a machine with a pod of berth, objects of other programs, and no leak.
func newWorld(t *testing.T) *world {
	dir := t.TempDir()
	w := &world{
		t: t, state: filepath.Join(dir, "state"), root: filepath.Join(dir, "root"), netnsDir: filepath.Join(dir, "netns"), confDir: filepath.Join(dir, "cni"),
		cgroups: map[string][]Cgroup{}, listed: func(string) {},
	}
	w.answer = Answer{IDs: []string{sandboxID, containerID}, State: w.state}
	w.up()
	w.file(w.state, "pods/sandboxes", sandboxID+".json")
	w.file(w.state, "pods/containers", containerID+".json")
	w.file(w.state, "supervisor/supervisor", containerID, "record.json")
	w.file(w.root, "pods/attachments", sandboxID+".json")
	w.attached(sandboxID, "vetha1", "10.88.0.2/16")
	w.file(w.root, "images/containers", containerID, "record")
	w.file(w.state, "engine/sandboxes", sandboxID, "uts")
	w.file(w.root, "pods/sandboxes", sandboxID, "hosts")
	w.file(w.root, "pods/containers", containerID, "restored/pages-1.img")
	for _, name := range []string{"berth-default-" + sandboxID, "berth-12345678-" + lostID, "cni-" + lostID, "berth-default-x-" + lostID} {
		w.file(w.netnsDir, name)
	}
	w.mounts = []Mount{
		{1, w.state + "/engine/sandboxes/" + sandboxID + "/uts", "nsfs"},
		{2, w.state + "/images/rootfs/" + containerID, "overlay"},
		{3, w.state + "/images/rootfs/" + sandboxID + "-0123", "overlay"},
		{4, "/run/containerd/" + lostID + "/rootfs", "overlay"},
		{5, w.state + "/engine/pod-init", "tmpfs"},
	}
	w.cgroups["/berth-default"] = []Cgroup{{"/berth-default/" + sandboxID, "1", []string{"process 7 (app)"}}}
	w.cgroups["/kubepods"] = []Cgroup{{"/kubepods/" + foreignID, "2", nil}}
	w.links = []Link{{1, "vetha1", "berth sandbox " + sandboxID + " 10.88.0.2/16"}, {2, "vethd4", ""}}
	w.elements = []Element{port("ports4", 80, "10.88.0.2"), frame("guarded", "vetha1")}
	w.file(w.confDir, "10-net.conflist")
	w.write(w.confDir+"/10-net.conflist", fmt.Sprintf(`{"name":"net","plugins":[{"type":"bridge","ipam":{"type":"host-local","dataDir":%q}}]}`, w.root+"/ipam"))
	w.file(w.root, "ipam/net/lock")
	w.write(w.file(w.root, "ipam/net/10.1.0.2"), sandboxID+"\r\neth0")
	return w
}

// up has a berth that runs.
func (w *world) up() { w.asked = func(a Answer) (Answer, error) { return a, nil } }

// down has none.
func (w *world) down() {
	w.asked = func(Answer) (Answer, error) { return Answer{}, fmt.Errorf("nobody listens: %w", errs.Unavailable) }
}

func (w *world) facts() *Facts {
	f := New(Config{
		Instance: "default", Root: w.root, State: w.state, Native: true, NetNSDir: w.netnsDir, CNIConfDir: w.confDir, Bridge: "berth0", Table: "berth", Host: w,
		Ask: func(context.Context) (Answer, error) { return w.asked(w.answer) },
	})
	w.t.Cleanup(func() {
		if err := f.Close(); err != nil {
			w.t.Error(err)
		}
	})
	return f
}

// file makes an empty file, and returns its path.
func (w *world) file(parts ...string) string {
	path := filepath.Join(parts...)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		w.t.Fatal(err)
	}
	w.write(path, "{}")
	return path
}

func (w *world) write(path, content string) {
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) remove(path string) {
	if err := os.RemoveAll(path); err != nil {
		w.t.Fatal(err)
	}
}

// attached writes the record of an attachment to the built-in network.
func (w *world) attached(sandbox, link, address string) {
	path := w.file(w.state, "network/attachments", sandbox+".json")
	w.write(path, fmt.Sprintf(`{"version":1,"id":%q,"record":{"sandbox":%[1]q,"link":%q,"addrs":[%q]}}`, sandbox, link, address))
}

// snapshot is all that there is.
func (w *world) snapshot() string {
	var all []string
	for _, dir := range []string{w.state, w.root, w.netnsDir, w.confDir} {
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() && entry.Name() != "daemon.lock" {
				all = append(all, path)
			}
			return err
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprint(strings.Join(all, "\n"), "\n", w.mounts, "\n", w.cgroups, "\n", w.links, "\n", w.elements)
}

func (w *world) list(what string) func() {
	w.listed(what)
	w.mu.Lock()
	return w.mu.Unlock
}

func (w *world) Mounts(below string) ([]Mount, error) {
	defer w.list("mounts")()
	return slices.DeleteFunc(slices.Clone(w.mounts), func(m Mount) bool { return m.Path != below && !strings.HasPrefix(m.Path, below+"/") }), nil
}

func (w *world) Detach(path string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removed++
	w.mounts = slices.DeleteFunc(w.mounts, func(m Mount) bool { return m.Path == path || strings.HasPrefix(m.Path, path+"/") })
	return nil
}

func (w *world) RemoveNetNS(path string) error {
	w.removed++
	return os.Remove(path)
}

func (w *world) Cgroups(parent string) ([]Cgroup, error) {
	defer w.list("cgroups")()
	return slices.Clone(w.cgroups[parent]), nil
}

func (w *world) HasCgroup(parent string) (bool, error) {
	for _, all := range w.cgroups {
		if slices.ContainsFunc(all, func(c Cgroup) bool { return c.Path == parent }) {
			return true, nil
		}
	}
	return false, nil
}

func (w *world) HasNetNS(path string) (bool, error) {
	w.listed("netns")
	_, err := os.Stat(path)
	return err == nil, errs.IgnoreNotExist(err)
}

func (w *world) RemoveCgroup(_ context.Context, path string, kill bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removed++
	for parent, all := range w.cgroups {
		w.cgroups[parent] = slices.DeleteFunc(all, func(c Cgroup) bool { return c.Path == path && (kill || len(c.Processes) == 0) })
	}
	return nil
}

func (w *world) Links(string) ([]Link, error) {
	defer w.list("links")()
	return slices.Clone(w.links), nil
}

func (w *world) RemoveLink(l Link) error {
	w.removed++
	w.links = slices.DeleteFunc(w.links, func(other Link) bool { return other == l })
	return nil
}

func (w *world) Elements(string) ([]Element, error) {
	defer w.list("elements")()
	return slices.Clone(w.elements), nil
}

func (w *world) RemoveElement(e Element) error {
	w.removed++
	w.elements = slices.DeleteFunc(w.elements, func(other Element) bool { return other.Set == e.Set && string(other.Key) == string(e.Key) })
	return nil
}

func (w *world) SameNamespaces(int) (bool, error) { return !w.elsewhere, nil }

// port is an entry of a map of host ports.
func port(set string, number byte, pod string) Element {
	val := []byte{10, 88, 0, pod[len(pod)-1] - '0', 31, 144, 0, 0}
	return Element{Family: nftables.TableFamilyINet, Table: "berth", Set: set, Key: []byte{6, 0, 0, 0, 0, number, 0, 0}, Val: val}
}

// frame is an entry of the set of checked links.
func frame(set, link string) Element {
	key := make([]byte, 16)
	copy(key, link)
	return Element{Family: nftables.TableFamilyBridge, Table: "berth", Set: set, Key: key}
}
