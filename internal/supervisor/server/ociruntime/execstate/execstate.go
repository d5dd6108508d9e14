// Package execstate has what an exec needs of the state of its container. The state is a file of 30
// KiB in runc's format: it is decoded once, and again after it has changed.
package execstate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"syscall"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/ownstart/filter"
	"github.com/berthrun/berth/internal/supervisor/ownstart/finish"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// fileName is the name of the state in the container's directory.
const fileName = "state.json"

// State is what an exec needs. Callers do not change it.
type State struct {
	// Pid of the init; StartTime in clock ticks since boot.
	Pid       int
	StartTime uint64
	Cgroups   cgroup.Paths
	// Namespaces are the container's own but the mount namespace: flags CLONE_NEWPID, ...
	Namespaces int
	// Users has the namespaces and the id mappings of the container alone: see its HostUID and HostGID.
	Users configs.Config
	// Unfit is why only libcontainer can exec in the container, "" for no reason.
	Unfit string
	// Process has what the container decides where the spec of an exec says nothing: umask,
	// limits, capabilities, labels, OOM score, keyring.
	Process *finish.Process
	// HasUmask is true when the container's spec has the umask of Process.
	HasUmask bool

	mu sync.Mutex
	// seccomp is the profile until its filter is known.
	seccomp *configs.Seccomp
	filter  *finish.Filter
}

// Filter returns the container's seccomp filter, nil for none. See filter.Cache for errors.
func (s *State) Filter(ctx context.Context, filters *filter.Cache) (*finish.Filter, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seccomp != nil {
		f, err := filters.Get(ctx, s.seccomp)
		if err != nil {
			return nil, err
		}
		s.filter, s.seccomp = f, nil
	}
	return s.filter, nil
}

// Cache has the states of containers below one directory.
type Cache struct {
	root string

	mu    sync.Mutex
	known map[string]*known
}

// known is a state, and which file it was read from.
type known struct {
	device, inode uint64
	size          int64
	changed       syscall.Timespec
	state         *State
}

// New returns a Cache of the states below root.
func New(root string) *Cache { return &Cache{root: root, known: make(map[string]*known)} }

// Get returns the state of a container. Kind NotFound when there is none. The id is a file name.
func (c *Cache) Get(id string) (*State, error) {
	file, err := os.Open(filepath.Join(c.root, id, fileName))
	if errors.Is(err, fs.ErrNotExist) {
		c.Forget(id)
		return nil, fmt.Errorf("container %s: %w", id, errs.NotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot load container %s: %w", id, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("cannot load container %s: %w", id, err)
	}
	st := info.Sys().(*syscall.Stat_t)
	fresh := &known{device: st.Dev, inode: st.Ino, size: st.Size, changed: st.Ctim}
	c.mu.Lock()
	old := c.known[id]
	c.mu.Unlock()
	if old != nil && old.same(fresh) {
		return old.state, nil
	}
	var state libcontainer.State
	if err := json.NewDecoder(file).Decode(&state); err != nil {
		return nil, fmt.Errorf("cannot load container %s: %w", id, err)
	}
	fresh.state = digest(id, &state)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[id] = fresh
	return fresh.state, nil
}

func (k *known) same(other *known) bool {
	return k.device == other.device && k.inode == other.inode && k.size == other.size && k.changed == other.changed
}

// Forget removes a container from the cache.
func (c *Cache) Forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, id)
}

// digest takes from a state what an exec needs.
func digest(id string, state *libcontainer.State) *State {
	config := &state.Config
	s := &State{
		Pid:       state.InitProcessPid,
		StartTime: state.InitProcessStartTime,
		Cgroups:   state.CgroupPaths,
		seccomp:   config.Seccomp,
		Process: &finish.Process{
			Umask:           finish.DefaultUmask,
			NoNewPrivileges: config.NoNewPrivileges,
			AppArmor:        config.AppArmorProfile,
			SELinux:         config.ProcessLabel,
			OOMScoreAdj:     config.OomScoreAdj,
		},
	}
	s.Users.Namespaces, s.Users.UIDMappings, s.Users.GIDMappings = config.Namespaces, config.UIDMappings, config.GIDMappings
	s.Namespaces, s.Unfit = namespaces(config.Namespaces)
	if s.Unfit == "" {
		s.Unfit = unhandled(*config)
	}
	if config.Umask != nil {
		s.Process.Umask, s.HasUmask = int(*config.Umask), true
	}
	for _, l := range config.Rlimits {
		s.Process.Rlimits = append(s.Process.Rlimits, finish.Rlimit{Kind: l.Type, Soft: l.Soft, Hard: l.Hard})
	}
	if c := config.Capabilities; c != nil {
		s.Process.Capabilities = finish.CapabilitySets(c.Bounding, c.Effective, c.Permitted, c.Inheritable, c.Ambient)
	}
	if !config.NoNewKeyring {
		s.Process.Keyring = "_ses." + id
	}
	return s
}

// namespaces returns the flags of the namespaces but the mount namespace, or why an exec in them needs
// libcontainer.
func namespaces(list configs.Namespaces) (flags int, unfit string) {
	mounts := false
	for _, ns := range list {
		switch ns.Type {
		case configs.NEWNS:
			mounts = true
		case configs.NEWPID, configs.NEWNET, configs.NEWIPC, configs.NEWUTS, configs.NEWCGROUP, configs.NEWUSER:
			flags |= int(ns.Syscall())
		default:
			return 0, fmt.Sprintf("a container with a namespace of type %s is not handled by berth's exec", ns.Type)
		}
	}
	if !mounts {
		return 0, "a container without a mount namespace is not handled by berth's exec"
	}
	return flags, ""
}

// unhandled returns why an exec needs libcontainer: a field of the configuration that matters to execs
// and that berth does not handle, or that is new.
func unhandled(config configs.Config) string {
	// Handled, as Process, Namespaces and Users.
	config.UIDMappings, config.GIDMappings = nil, nil
	config.Namespaces, config.Umask, config.Capabilities, config.Rlimits = nil, nil, nil, nil
	config.AppArmorProfile, config.ProcessLabel, config.OomScoreAdj = "", "", nil
	config.Seccomp, config.NoNewPrivileges, config.NoNewKeyring = nil, false, false
	// Of the init alone, or of the mount namespace.
	config.Rootfs, config.Readonlyfs, config.RootPropagation, config.Mounts = "", false, 0, nil
	config.Devices, config.NetDevices, config.MountLabel = nil, nil, ""
	config.Hostname, config.Domainname, config.Networks, config.Routes = "", "", nil, nil
	config.MaskPaths, config.ReadonlyPaths, config.Sysctl = nil, nil, nil
	config.Hooks, config.Version, config.Labels = nil, "", nil
	config.Cgroups = nil // an exec joins them by their paths
	v := reflect.ValueOf(config)
	for i := range v.NumField() {
		if f := v.Field(i); !f.IsZero() && (f.Kind() != reflect.Slice && f.Kind() != reflect.Map || f.Len() > 0) {
			return fmt.Sprintf("a container with %s is not handled by berth's exec", v.Type().Field(i).Name)
		}
	}
	return ""
}
