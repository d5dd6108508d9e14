package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// floorName is the column of the floor.
const floorName = "floor"

// floor does what the kernel has to do for a pod with one container, and nothing else: namespaces, a
// veth pair with an address, cgroups with limits, an overlay and a process. There is no API, no record,
// no seccomp and no cleanup after a crash. No runtime can be faster.
type floor struct {
	dir    string
	bridge int
	// parents are the directories of cgroups that pods' cgroups are made in.
	parents []string
	count   int
}

// floorLimits are the files of cgroups that a pod and a container get, where the hierarchy has them.
func floorLimits() map[string]string {
	return map[string]string{
		"memory.limit_in_bytes": "1073741824", "memory.max": "1073741824",
		"cpu.shares": "102", "cpu.weight": "4", "pids.max": "1000",
	}
}

// newFloor prepares the root file system, the bridge and the parents of the cgroups.
func newFloor(dir string) (*floor, error) {
	f := &floor{dir: dir}
	if err := f.makeRoot(); err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "floor0"
	link := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(link); err != nil {
		return nil, fmt.Errorf("cannot add bridge %s: %w", attrs.Name, err)
	}
	f.bridge = link.Index
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, err
	}
	parents, err := hierarchies()
	if err != nil {
		return nil, err
	}
	for _, parent := range parents {
		own := filepath.Join(parent, "bench-floor")
		if err := os.Mkdir(own, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
		f.parents = append(f.parents, own)
	}
	return f, nil
}

// hierarchies are the directories of the test's own cgroup in each hierarchy that is mounted.
func hierarchies() (dirs []string, err error) {
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		return []string{root}, nil
	}
	for _, name := range []string{"cpu", "cpuset", "memory", "devices", "freezer", "blkio", "pids"} {
		if _, err := os.Stat(filepath.Join(root, name, "cgroup.procs")); err == nil {
			dirs = append(dirs, filepath.Join(root, name))
		}
	}
	if len(dirs) == 0 {
		return nil, fmt.Errorf("no cgroup hierarchy is mounted below %s", root)
	}
	return dirs, nil
}

func (f *floor) makeRoot() error {
	bin := filepath.Join(f.dir, "lower", "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	program, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(bin, "busybox"), program, 0o755) //nolint:gosec // a program
}

// close removes what newFloor made.
func (f *floor) close() error {
	err := netlink.LinkDel(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "floor0", Index: f.bridge}})
	for _, parent := range f.parents {
		err = errors.Join(err, os.Remove(parent))
	}
	return err
}

// pod makes a pod and removes it, and returns how long each part took.
func (f *floor) pod(_ context.Context) (up, stop, remove time.Duration, err error) {
	f.count++
	p := &floorPodState{floor: f, name: "pod" + strconv.Itoa(f.count), dir: filepath.Join(f.dir, strconv.Itoa(f.count))}
	begin := time.Now()
	done := make(chan error)
	go func() {
		// The thread has the pod's namespaces, so it ends with the goroutine.
		runtime.LockOSThread()
		done <- p.up()
	}()
	if err := <-done; err != nil {
		return 0, 0, 0, errors.Join(err, p.remove())
	}
	up = time.Since(begin)
	begin = time.Now()
	if err := p.stop(); err != nil {
		return 0, 0, 0, errors.Join(err, p.remove())
	}
	stop = time.Since(begin)
	begin = time.Now()
	err = p.remove()
	return up, stop, time.Since(begin), err
}

type floorPodState struct {
	*floor
	name, dir string
	process   *exec.Cmd
	// group is the cgroup of v2 that the process begins in.
	group *os.File
}

func (p *floorPodState) up() error {
	for _, dir := range []string{"upper", "work", "merged"} {
		if err := os.MkdirAll(filepath.Join(p.dir, dir), 0o755); err != nil {
			return err
		}
	}
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS); err != nil {
		return fmt.Errorf("cannot make namespaces: %w", err)
	}
	if err := p.connect(); err != nil {
		return fmt.Errorf("cannot connect the pod: %w", err)
	}
	if err := p.makeCgroups(); err != nil {
		return err
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", filepath.Join(p.floor.dir, "lower"), filepath.Join(p.dir, "upper"), filepath.Join(p.dir, "work"))
	if err := unix.Mount("overlay", filepath.Join(p.dir, "merged"), "overlay", 0, options); err != nil {
		return fmt.Errorf("cannot mount an overlay: %w", err)
	}
	return p.start()
}

// connect makes a pin of the network namespace, and a veth pair with an address and a route. It runs in
// the pod's namespace; a socket in the host's makes the pair.
func (p *floorPodState) connect() error {
	pin := filepath.Join(p.dir, "net")
	if err := os.WriteFile(pin, nil, 0o600); err != nil {
		return err
	}
	own := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
	if err := unix.Mount(own, pin, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	ns, err := os.Open(pin)
	if err != nil {
		return err
	}
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex, attrs.Flags = "fl"+p.name, p.bridge, net.FlagUp
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(ns.Fd()))} //nolint:gosec // a descriptor
	if err := inHost(func() error { return netlink.LinkAdd(pair) }); err != nil {
		return err
	}
	inside, err := netlink.NewHandle() // in the namespace of this thread
	if err != nil {
		return err
	}
	defer inside.Close()
	eth, err := inside.LinkByName("eth0")
	if err != nil {
		return err
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 203, byte(p.count>>8), byte(p.count)), Mask: net.CIDRMask(16, 32)}}
	gateway := &netlink.Route{LinkIndex: eth.Attrs().Index, Gw: net.IPv4(10, 203, 0, 1)}
	lo, err := inside.LinkByName("lo")
	if err != nil {
		return err
	}
	return errors.Join(inside.LinkSetUp(lo), inside.AddrAdd(eth, address), inside.LinkSetUp(eth), inside.RouteAdd(gateway))
}

// inHost runs do on a thread that has the namespaces of the process.
func inHost(do func() error) error {
	done := make(chan error)
	go func() { done <- do() }()
	return <-done
}

func (p *floorPodState) makeCgroups() error {
	for _, parent := range p.parents {
		for _, dir := range []string{filepath.Join(parent, p.name), filepath.Join(parent, p.name, "c")} {
			if err := os.Mkdir(dir, 0o755); err != nil {
				return err
			}
			for file, value := range floorLimits() {
				err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0)
				if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) {
					return err
				}
			}
		}
		if strings.HasSuffix(filepath.Dir(parent), "/cpuset") {
			if err := p.fillCpuset(parent); err != nil {
				return err
			}
		}
	}
	return nil
}

// fillCpuset copies the processors and memory nodes of the root: a cpuset of cgroup v1 without them
// takes no process.
func (p *floorPodState) fillCpuset(parent string) error {
	for _, dir := range []string{parent, filepath.Join(parent, p.name), filepath.Join(parent, p.name, "c")} {
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(filepath.Dir(parent), file))
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, file), value, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// start starts the process in its cgroups. To move a process that runs waits for a grace period of RCU
// after an idle moment; a process that is born in its cgroup does not.
func (p *floorPodState) start() error {
	p.process = exec.Command("/bin/busybox", "sleep", "1000000") //nolint:noctx // ended by stop
	p.process.SysProcAttr = &syscall.SysProcAttr{Chroot: filepath.Join(p.dir, "merged"), Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	for _, parent := range p.parents {
		group := filepath.Join(parent, p.name, "c")
		// cgroup v1: this thread moves itself, its child is born there, and the thread ends with p.up.
		err := os.WriteFile(filepath.Join(group, "tasks"), []byte("0"), 0)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
			err = p.bornIn(group)
		}
		if err != nil {
			return err
		}
	}
	if err := p.process.Start(); err != nil {
		return fmt.Errorf("cannot start the container's process: %w", err)
	}
	return p.leaveCgroups()
}

// leaveCgroups moves this thread out of the pod's cgroups of v1, which are removed before it ends.
func (p *floorPodState) leaveCgroups() error {
	for _, parent := range p.parents {
		if p.group != nil {
			break
		}
		if err := os.WriteFile(filepath.Join(parent, "tasks"), []byte("0"), 0); err != nil {
			return err
		}
	}
	return nil
}

// bornIn lets the process begin in a cgroup of v2.
func (p *floorPodState) bornIn(group string) error {
	dir, err := os.Open(group)
	if err != nil {
		return err
	}
	p.group = dir
	p.process.SysProcAttr.UseCgroupFD, p.process.SysProcAttr.CgroupFD = true, int(dir.Fd())
	return nil
}

func (p *floorPodState) stop() error {
	if err := p.process.Process.Kill(); err != nil {
		return err
	}
	_ = p.process.Wait() // it was killed
	return nil
}

func (p *floorPodState) remove() error {
	var err error
	if p.group != nil {
		p.group.Close()
	}
	if p.process != nil && p.process.ProcessState == nil && p.process.Process != nil {
		err = p.stop()
	}
	for _, parent := range p.parents {
		for _, dir := range []string{filepath.Join(parent, p.name, "c"), filepath.Join(parent, p.name)} {
			if removed := os.Remove(dir); !errors.Is(removed, os.ErrNotExist) {
				err = errors.Join(err, removed)
			}
		}
	}
	for _, mount := range []string{"merged", "net"} {
		if unmounted := unix.Unmount(filepath.Join(p.dir, mount), unix.MNT_DETACH); unmounted != nil && !errors.Is(unmounted, unix.EINVAL) && !errors.Is(unmounted, unix.ENOENT) {
			err = errors.Join(err, unmounted)
		}
	}
	return errors.Join(err, os.RemoveAll(p.dir))
}
