package cgroup

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/berthrun/berth/internal/sys/sysfile"
)

// OOMKills returns the number of OOM kills in the cgroup, 0 where the kernel has no counter.
func (p Paths) OOMKills() (uint64, error) {
	file := "memory.oom_control"
	dir, ok := p["memory"]
	if !ok {
		dir, file = p[""], "memory.events"
	}
	r := &reader{}
	kills := r.keyed(dir, file).get("oom_kill")
	if r.err != nil {
		return 0, fmt.Errorf("cannot read OOM kills: %w", r.err)
	}
	return kills, nil
}

// OOMWatch sees OOM kills while they happen, on cgroup v2: systemd removes a
// scope, and its counter with it, as soon as the last process has ended. On v1
// the counter is there when the exit is seen.
type OOMWatch struct {
	files *sysfile.FileWatch

	mu     sync.Mutex
	groups map[string]watched
	killed map[string]bool
}

type watched struct {
	paths Paths
	kills uint64 // before
}

// NewOOMWatch makes a watch without containers. Run must be called for it to
// see kills.
func NewOOMWatch() (*OOMWatch, error) {
	files, err := sysfile.NewFileWatch()
	if err != nil {
		return nil, err
	}
	return &OOMWatch{files: files, groups: make(map[string]watched), killed: make(map[string]bool)}, nil
}

// Run looks until ctx ends.
func (o *OOMWatch) Run(ctx context.Context) {
	for {
		id, err := o.files.Next(ctx)
		if err != nil {
			return
		}
		o.mu.Lock()
		group := o.groups[id]
		o.mu.Unlock()
		if kills, err := group.paths.OOMKills(); err == nil && kills > group.kills {
			o.mu.Lock()
			o.killed[id] = true
			o.mu.Unlock()
		}
	}
}

// Add watches a container, on cgroup v2; kills are those that do not count.
func (o *OOMWatch) Add(id string, group Paths, kills uint64) error {
	if !group.unified() {
		return nil
	}
	o.mu.Lock()
	o.groups[id] = watched{group, kills}
	o.mu.Unlock()
	return o.files.Add(filepath.Join(group[""], "memory.events"), id)
}

// Saw reports whether the OOM killer killed a process of the container.
func (o *OOMWatch) Saw(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.killed[id]
}

// Forget ends the watch of a container.
func (o *OOMWatch) Forget(id string) {
	o.mu.Lock()
	delete(o.groups, id)
	delete(o.killed, id)
	o.mu.Unlock()
	o.files.Remove(id)
}
