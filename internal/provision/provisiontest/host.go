// Package provisiontest has a machine in memory for tests: a file system, a service manager that
// reads its units from there, packages, a kernel, accounts and assets. A test can make any
// operation that changes it fail, or be the last.
package provisiontest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// Fault says what happens to an operation.
type Fault int

// The faults.
const (
	None       Fault = iota
	KillBefore       // the process dies before it
	KillIn           // in it: an append is cut short; what is atomic has not happened
	KillAfter        // right after it
	Full             // no space left on the device
)

// ErrKilled is what every operation returns when the process is dead.
var ErrKilled = errors.New("killed")

// Host is a machine in memory. Make it with New.
type Host struct {
	// NotLive makes it a root directory.
	NotLive bool
	// Fault decides what happens to the n-th operation that changes something, counted from 1.
	Fault func(n int, op string) Fault
	// Programs answers Run by the first word.
	Programs map[string]func(cmd provision.Command) ([]byte, error)
	// Broken maps units that do not start to the reason.
	Broken map[string]string
	// Repository maps packages to versions and dependencies.
	Repository map[string]Package
	// StaleLists is set while the package manager's lists, which are fetched, have no package.
	StaleLists bool
	// Sources maps asset sources to members and their contents.
	Sources map[string]map[string]string
	// Free is how many bytes the disk has room for; nothing uses them up.
	Free int64
	// Watchers is how many inotify instances can still be created; nil for any number.
	Watchers *int

	mu       sync.Mutex
	ops      []string
	dead     bool
	nodes    map[string]*inode
	stamp    int
	units    map[string]*unit
	packages map[string]string
	sysctls  map[string]string
	modules  map[string]provision.ModuleState
	mounts   []provision.Mount
	swaps    []string
	users    map[string]provision.User
	groups   map[string]provision.Group
	fetched  map[string]bool
}

// Package is one of the repository.
type Package struct {
	Version string
	// Needs lists packages that come along.
	Needs []string
	// Exact: it needs them in its own version.
	Exact bool
	// Files are written when it is installed, and go with it.
	Files map[string]string
	// Starts lists units that run, and start at boot, as soon as it is installed.
	Starts []string
}

// New returns a machine with the directories that every machine has.
func New() *Host {
	h := &Host{
		Free:     math.MaxInt64,
		Programs: map[string]func(provision.Command) ([]byte, error){}, Broken: map[string]string{},
		Repository: map[string]Package{}, Sources: map[string]map[string]string{},
		nodes: map[string]*inode{}, units: map[string]*unit{}, packages: map[string]string{},
		sysctls: map[string]string{}, modules: map[string]provision.ModuleState{},
		users:  map[string]provision.User{"root": {Name: "root", Home: "/root", Shell: "/bin/sh"}},
		groups: map[string]provision.Group{"root": {Name: "root"}}, fetched: map[string]bool{},
	}
	for _, dir := range []string{"/", "/etc", "/etc/systemd", "/etc/systemd/system", "/usr", "/usr/bin", "/var", "/var/lib", "/run"} {
		h.nodes[dir] = &inode{mode: dirMode}
	}
	return h
}

// StartProcess starts a new process on the machine, after one that was killed.
func (h *Host) StartProcess() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dead = false
	h.ops = nil
	h.Fault = nil
}

// Ops lists the operations that changed something.
func (h *Host) Ops() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.ops)
}

// SetSysctlNow and the like set up the machine without an operation.
func (h *Host) SetSysctlNow(key, value string) { h.sysctls[key] = value }

// SetPackageNow installs a version of a package.
func (h *Host) SetPackageNow(name, version string) { h.packages[name] = version }

// AddMount mounts something without an operation.
func (h *Host) AddMount(m provision.Mount) { h.mounts = append(h.mounts, m) }

// SetModule says where a kernel module is.
func (h *Host) SetModule(name string, state provision.ModuleState) { h.modules[name] = state }

// change runs f as one operation that changes something: wholly or not at all. Callers
// do not hold mu.
func (h *Host) change(op string, f func() error) error {
	return h.changeOrHalf(op, f, func() error { return nil })
}

// changeOrHalf runs whole as one operation that changes something, and half if the process is
// killed in the middle of it. Callers do not hold mu.
func (h *Host) changeOrHalf(op string, whole, half func() error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dead {
		return ErrKilled
	}
	h.ops = append(h.ops, op)
	fault := None
	if h.Fault != nil {
		fault = h.Fault(len(h.ops), op)
	}
	switch fault {
	case KillBefore:
		h.dead = true
		return ErrKilled
	case KillIn:
		h.dead = true
		return errors.Join(ErrKilled, half())
	case Full:
		return fmt.Errorf("cannot %s: %w", op, errs.Exhausted)
	}
	err := whole()
	if fault == KillAfter {
		h.dead = true
		return ErrKilled
	}
	return err
}

// read runs f with mu held.
func (h *Host) read(f func() error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dead {
		return ErrKilled
	}
	return f()
}

// Fingerprint has the same key in every run.
func (h *Host) Fingerprint(text string) string { return new(provision.Fingerprints).Of(text) }

// Live is true unless NotLive.
func (h *Host) Live() bool { return !h.NotLive }

// Files is the file system.
func (h *Host) Files() provision.Files { return files{h} }

// Units is the service manager.
func (h *Host) Units() provision.Units { return units{h} }

// Packages is the package manager.
func (h *Host) Packages() provision.Packages { return packages{h} }

// Kernel is the kernel.
func (h *Host) Kernel() provision.Kernel { return kernel{h} }

// Accounts is the user database.
func (h *Host) Accounts() provision.Accounts { return accounts{h} }

// Assets are the sources.
func (h *Host) Assets() provision.Assets { return assets{h} }

// Run answers from Programs.
func (h *Host) Run(_ context.Context, cmd provision.Command) ([]byte, error) {
	program, ok := h.Programs[cmd.Args[0]]
	if !ok {
		return nil, fmt.Errorf("cannot run %s: %w", cmd.Args[0], errs.NotFound)
	}
	var out []byte
	err := h.change("run "+strings.Join(cmd.Args, " "), func() (err error) {
		h.mu.Unlock()
		defer h.mu.Lock()
		out, err = program(cmd)
		return err
	})
	return out, err
}

// Tree describes the machine for comparison, one line for each object, except those below the
// directories without.
func (h *Host) Tree(without ...string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []string
	for path, n := range h.nodes {
		if !slices.ContainsFunc(without, func(dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }) {
			list = append(list, path+" "+n.String())
		}
	}
	for name, u := range h.units {
		if u.active {
			list = append(list, "active "+name)
		}
	}
	for name, version := range h.packages {
		list = append(list, "package "+name+" "+version)
	}
	for key, value := range h.sysctls {
		list = append(list, "sysctl "+key+"="+value)
	}
	for name, state := range h.modules {
		list = append(list, "module "+name+" "+string(state))
	}
	for _, m := range h.mounts {
		list = append(list, "mount "+m.Path)
	}
	for _, path := range h.swaps {
		list = append(list, "swap "+path)
	}
	for _, u := range h.users {
		list = append(list, fmt.Sprintf("user %+v", u))
	}
	for _, g := range h.groups {
		list = append(list, fmt.Sprintf("group %+v", g))
	}
	slices.Sort(list)
	return list
}

type assets struct{ h *Host }

func (a assets) Members(ref provision.AssetRef) ([]provision.Member, error) {
	var list []provision.Member
	err := a.h.read(func() error {
		if !a.h.fetched[ref.Digest] {
			return fmt.Errorf("asset %s: %w", ref.Name, errs.NotFound)
		}
		list = a.members(ref)
		return nil
	})
	return list, err
}

func (a assets) members(ref provision.AssetRef) []provision.Member {
	var list []provision.Member
	for _, source := range ref.Sources {
		for path, content := range a.h.Sources[source] {
			list = append(list, provision.Member{Path: path, Digest: digestOf(content), Size: int64(len(content)), Exec: true})
		}
	}
	slices.SortFunc(list, func(x, y provision.Member) int { return strings.Compare(x.Path, y.Path) })
	return list
}

func (a assets) Fetch(_ context.Context, ref provision.AssetRef) ([]provision.Member, error) {
	var list []provision.Member
	err := a.h.read(func() error {
		if list = a.members(ref); len(list) == 0 {
			return fmt.Errorf("no source of %s answers: %w", ref.Name, errs.Unavailable)
		}
		a.h.fetched[ref.Digest] = true
		return nil
	})
	return list, err
}

func (a assets) Read(_ context.Context, ref provision.AssetRef, members []string, f func(string, io.Reader) error) error {
	for _, member := range members {
		found := false
		for _, source := range ref.Sources {
			if content, ok := a.h.Sources[source][member]; ok {
				found = true
				if err := f(member, strings.NewReader(content)); err != nil {
					return err
				}
			}
		}
		if !found {
			return fmt.Errorf("%s of asset %s: %w", member, ref.Name, errs.NotFound)
		}
	}
	return nil
}
