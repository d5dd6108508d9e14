package provisiontest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

const (
	unitDir  = "/etc/systemd/system/"
	wantsDir = unitDir + "multi-user.target.wants"
)

type unit struct {
	loaded   string // files as systemd has read them
	known    bool
	active   bool
	failed   bool // did not start
	masked   bool
	restarts int
}

type units struct{ h *Host }

// files returns a unit's files. Callers hold mu.
func (u units) files(name string) string {
	var all []string
	for _, dir := range []string{unitDir, "/usr/lib/systemd/system/"} {
		for path, n := range u.h.nodes {
			if path == dir+name || strings.HasPrefix(path, dir+name+".d/") {
				all = append(all, path+fmt.Sprint(n.stamp))
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func (u units) get(name string) *unit {
	if u.h.units[name] == nil {
		u.h.units[name] = &unit{}
	}
	unit := u.h.units[name]
	if !unit.known { // systemd reads a unit when it is first asked for it
		unit.loaded = u.files(name)
		unit.known = unit.loaded != ""
	}
	return unit
}

// Restarts counts the restarts of a unit.
func (h *Host) Restarts(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return units{h}.get(name).restarts
}

// StartNow starts a unit without an operation.
func (h *Host) StartNow(name string) { units{h}.get(name).active = true }

func (u units) State(_ context.Context, name string) (provision.UnitState, error) {
	var state provision.UnitState
	if !strings.Contains(name, ".") {
		return state, fmt.Errorf("unit name %q: %w", name, errs.Invalid)
	}
	err := u.h.read(func() error {
		unit := u.get(name)
		state = provision.UnitState{Load: "loaded", Active: "inactive", Sub: "dead", Enabled: "disabled"}
		if unit.loaded == "" && !unit.active {
			state.Load, state.Enabled = "not-found", ""
		}
		state.NeedReload = unit.known && unit.loaded != u.files(name)
		switch {
		case unit.active:
			state.Active, state.Sub = "active", "running"
		case unit.failed:
			state.Active, state.Sub, state.Result = "failed", "failed", "exit-code"
		}
		if u.h.nodes[wantsDir+"/"+name] != nil {
			state.Enabled = "enabled"
		}
		if unit.masked {
			state.Load, state.Enabled = "masked", "masked"
		}
		if u.h.NotLive {
			state.Active = ""
		}
		return nil
	})
	return state, err
}

func (u units) Reload(context.Context) error {
	return u.h.change("daemon-reload", func() error {
		for name, unit := range u.h.units {
			unit.loaded = u.files(name)
			unit.known = unit.loaded != ""
		}
		return nil
	})
}

func (u units) Enable(_ context.Context, name string) error {
	return u.h.change("enable "+name, func() error { u.enable(name); return nil })
}

func (u units) enable(name string) {
	u.h.nodes[wantsDir] = &inode{mode: dirMode}
	u.h.nodes[wantsDir+"/"+name] = &inode{target: unitDir + name}
}

func (u units) Disable(_ context.Context, name string) error {
	return u.h.change("disable "+name, func() error { u.disable(name); return nil })
}

func (u units) disable(name string) {
	delete(u.h.nodes, wantsDir+"/"+name)
	if len(files(u).children(wantsDir)) == 0 {
		delete(u.h.nodes, wantsDir)
	}
}

func (u units) Mask(_ context.Context, name string) error {
	return u.h.change("mask "+name, func() error { u.get(name).masked = true; return nil })
}

func (u units) Unmask(_ context.Context, name string) error {
	return u.h.change("unmask "+name, func() error { u.get(name).masked = false; return nil })
}

func (u units) start(name string) error {
	unit := u.get(name)
	if unit.masked {
		return fmt.Errorf("cannot start %s: it is masked", name)
	}
	if reason := u.h.Broken[name]; reason != "" {
		unit.active, unit.failed = false, true
		return fmt.Errorf("cannot start %s: %s", name, reason)
	}
	if unit.loaded == "" {
		return fmt.Errorf("cannot start %s: %w", name, errs.NotFound)
	}
	unit.active, unit.failed = true, false
	return nil
}

func (u units) Start(_ context.Context, name string) error {
	return u.h.change("start "+name, func() error { return u.start(name) })
}

func (u units) Stop(_ context.Context, name string) error {
	return u.h.change("stop "+name, func() error { u.get(name).active, u.get(name).failed = false, false; return nil })
}

func (u units) Restart(_ context.Context, name string) error {
	return u.h.change("restart "+name, func() error { u.get(name).restarts++; return u.start(name) })
}

func (u units) ReloadUnit(_ context.Context, name string) error {
	return u.h.change("reload "+name, func() error { u.get(name).restarts++; return nil })
}

type packages struct{ h *Host }

func (p packages) Manager() string { return "fake" }

func (p packages) Installed(_ context.Context, names []string) (map[string]string, error) {
	list := map[string]string{}
	err := p.h.read(func() error {
		for _, name := range names {
			if version, ok := p.h.packages[name]; ok {
				list[name] = version
			}
		}
		return nil
	})
	return list, err
}

// Half lists none: installs here are atomic.
func (p packages) Half(context.Context, []string) ([]string, error) { return nil, nil }

// Refresh makes a stale list a fresh one.
func (p packages) Refresh(context.Context) error {
	return p.h.read(func() error { p.h.StaleLists = false; return nil })
}

func (p packages) Plan(_ context.Context, wanted []provision.PackageVersion) ([]provision.PackageVersion, error) {
	var list []provision.PackageVersion
	err := p.h.read(func() error {
		if p.h.StaleLists {
			return fmt.Errorf("no list has %s: %w", wanted[0].Name, errs.Unavailable)
		}
		for _, w := range wanted {
			for _, name := range append(slices.Clone(p.h.Repository[w.Name].Needs), w.Name) {
				have, ok := p.h.packages[name]
				other := name == w.Name && w.Version != "" && w.Version != have
				if !ok || other || p.h.pair(name, w.Name) && p.h.Repository[name].Version != have {
					list = append(list, provision.PackageVersion{Name: name, Version: p.h.Repository[name].Version})
				}
			}
		}
		return nil
	})
	return list, err
}

func (p packages) Install(ctx context.Context, wanted []provision.PackageVersion, hold []string) error {
	if err := p.Refresh(ctx); err != nil {
		return err
	}
	list, err := p.Plan(ctx, wanted)
	if err != nil {
		return err
	}
	for _, w := range list {
		if err := p.h.change("install "+w.Name, func() error { return p.install(w.Name, hold) }); err != nil {
			return err
		}
	}
	return nil
}

// Revert needs the versions in the repository, and those that packages of one version need in the list.
func (p packages) Revert(_ context.Context, list []provision.PackageVersion) error {
	var names []string
	for _, w := range list {
		names = append(names, w.Name)
	}
	return p.h.change("revert "+strings.Join(names, " "), func() error {
		for _, w := range list {
			if p.h.Repository[w.Name].Version != w.Version {
				return fmt.Errorf("version %s of package %s: %w: %w", w.Version, w.Name, errs.State, errs.NotFound)
			}
			for other := range p.h.packages {
				if p.h.pair(w.Name, other) && !slices.Contains(names, other) && p.h.packages[other] != w.Version {
					return fmt.Errorf("version %s of package %s does not fit %s: %w", w.Version, w.Name, other, errs.State)
				}
			}
		}
		for _, name := range names {
			if err := p.install(name, nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// pair reports whether one of two packages needs the other in its own version.
func (h *Host) pair(a, b string) bool {
	return h.Repository[a].Exact && slices.Contains(h.Repository[a].Needs, b) || h.Repository[b].Exact && slices.Contains(h.Repository[b].Needs, a)
}

func (p packages) install(name string, hold []string) error {
	pkg, ok := p.h.Repository[name]
	if !ok {
		return fmt.Errorf("package %s: %w", name, errs.NotFound)
	}
	for path, content := range pkg.Files {
		if err := files(p).put(path, &inode{mode: 0o644, content: content}); err != nil {
			return err
		}
	}
	for _, name := range pkg.Starts {
		units(p).enable(name)
		if unit := units(p).get(name); !unit.active {
			unit.active = !slices.Contains(hold, name)
		}
	}
	p.h.packages[name] = pkg.Version
	return nil
}

func (p packages) Remove(_ context.Context, names []string) error {
	return p.h.change("remove packages "+strings.Join(names, " "), func() error {
		for _, name := range names {
			for other := range p.h.packages {
				if slices.Contains(p.h.Repository[other].Needs, name) && !slices.Contains(names, other) {
					return fmt.Errorf("package %s is needed by %s: %w", name, other, errs.State)
				}
			}
			for path := range p.h.Repository[name].Files {
				delete(p.h.nodes, path)
			}
			for _, unit := range p.h.Repository[name].Starts {
				units(p).disable(unit)
				delete(p.h.units, unit)
			}
			delete(p.h.packages, name)
		}
		return nil
	})
}

type kernel struct{ h *Host }

func (k kernel) Sysctl(key string) (string, error) {
	var value string
	err := k.h.read(func() error {
		v, ok := k.h.sysctls[key]
		if !ok {
			return fmt.Errorf("sysctl %s: %w", key, errs.NotFound)
		}
		value = v
		return nil
	})
	return value, err
}

func (k kernel) SetSysctl(key, value string) error {
	return k.h.change("sysctl "+key, func() error { k.h.sysctls[key] = value; return nil })
}

func (k kernel) Module(name string) (provision.ModuleState, error) {
	state := provision.ModuleAbsent
	err := k.h.read(func() error {
		if s, ok := k.h.modules[name]; ok {
			state = s
		}
		return nil
	})
	return state, err
}

func (k kernel) LoadModule(_ context.Context, name string) error {
	return k.h.change("modprobe "+name, func() error {
		if k.h.modules[name] == "" {
			return fmt.Errorf("module %s: %w", name, errs.NotFound)
		}
		k.h.modules[name] = provision.ModuleLoaded
		return nil
	})
}

func (k kernel) UnloadModule(_ context.Context, name string) error {
	return k.h.change("rmmod "+name, func() error { k.h.modules[name] = provision.ModuleAvailable; return nil })
}

func (k kernel) Mounts() ([]provision.Mount, error) {
	var list []provision.Mount
	err := k.h.read(func() error { list = slices.Clone(k.h.mounts); return nil })
	return list, err
}

func (k kernel) Unmount(_ context.Context, path string) error {
	return k.h.change("umount "+path, func() error {
		k.h.mounts = slices.DeleteFunc(k.h.mounts, func(m provision.Mount) bool { return m.Path == path })
		return nil
	})
}

func (k kernel) Swaps() ([]string, error) {
	var list []string
	err := k.h.read(func() error { list = slices.Clone(k.h.swaps); return nil })
	return list, err
}

func (k kernel) SwapOn(_ context.Context, path string) error {
	return k.h.change("swapon "+path, func() error { k.h.swaps = append(k.h.swaps, path); return nil })
}

func (k kernel) SwapOff(_ context.Context, path string) error {
	return k.h.change("swapoff "+path, func() error {
		k.h.swaps = slices.DeleteFunc(k.h.swaps, func(p string) bool { return p == path })
		return nil
	})
}

// Inotify returns atMost, unless Host.Watchers is less.
func (k kernel) Inotify(atMost int) (int, error) {
	if k.h.Watchers != nil {
		return min(atMost, *k.h.Watchers), nil
	}
	return atMost, nil
}

type accounts struct{ h *Host }

func (a accounts) User(name string) (provision.User, error) {
	var u provision.User
	err := a.h.read(func() error {
		found, ok := a.h.users[name]
		if !ok {
			return fmt.Errorf("user %s: %w", name, errs.NotFound)
		}
		u = found
		return nil
	})
	return u, err
}

func (a accounts) Group(name string) (provision.Group, error) {
	var g provision.Group
	err := a.h.read(func() error {
		found, ok := a.h.groups[name]
		if !ok {
			return fmt.Errorf("group %s: %w", name, errs.NotFound)
		}
		g = found
		return nil
	})
	return g, err
}

func (a accounts) SetUser(_ context.Context, u provision.User) error {
	return a.h.change("user "+u.Name, func() error {
		if u.UID < 0 {
			u.UID = 1000 + len(a.h.users)
		}
		if u.GID < 0 {
			u.GID = u.UID
		}
		a.h.users[u.Name] = u
		return nil
	})
}

func (a accounts) SetGroup(_ context.Context, g provision.Group) error {
	return a.h.change("group "+g.Name, func() error {
		if g.GID < 0 {
			g.GID = 1000 + len(a.h.groups)
		}
		a.h.groups[g.Name] = g
		return nil
	})
}

func (a accounts) RemoveUser(_ context.Context, name string) error {
	return a.h.change("remove user "+name, func() error { delete(a.h.users, name); return nil })
}

func (a accounts) RemoveGroup(_ context.Context, name string) error {
	return a.h.change("remove group "+name, func() error { delete(a.h.groups, name); return nil })
}

// Users lists the names of all accounts.
func (h *Host) Users() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.users))
}
