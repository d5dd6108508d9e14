// Package podcgroup makes and removes the cgroups of pods: the parent of a pod's containers,
// and its placeholder cgroup.
package podcgroup

import (
	"context"
	"log/slog"
	"sync"

	"github.com/berthrun/berth/internal/sys/cgroup"
)

// The cgroup drivers.
const (
	Cgroupfs = "cgroupfs"
	Systemd  = "systemd"
)

// Config configures a Manager. All fields are required.
type Config struct {
	// Instance names this berth among others on the host.
	Instance string
	// Driver is Cgroupfs or Systemd.
	Driver string
	// Prefix begins the names of scopes.
	Prefix string
	// DefaultParent is the cgroup of sandboxes whose request names none: a path, or a slice
	// for Systemd.
	DefaultParent string
	// Running returns the processes of the containers that the runtime has running, of a sandbox at
	// least. RemoveParent kills none of them.
	Running func(ctx context.Context, sandboxID string) (pids []int, err error)
	Log     *slog.Logger
}

// Manager manages the cgroups of pods. All methods are safe for concurrent use.
type Manager struct {
	cfg    Config
	tree   *cgroup.Tree
	slices systemdSlices

	// placeholders serialises making and removing placeholder cgroups.
	placeholders sync.Mutex

	// mu is never held over a call of systemd.
	mu sync.Mutex
	// ownParents maps a cgroup parent that requests named, and that the Manager made, to
	// the topmost cgroup that was missing.
	ownParents map[string]string
	// adopt lists the records of an earlier process that are not read yet, nil if there are none.
	adopt func() ([]string, error)
}

// New returns a Manager for the cgroups in tree.
func New(cfg Config, tree *cgroup.Tree) *Manager {
	return &Manager{cfg: cfg, tree: tree, slices: newSlices(), ownParents: map[string]string{}}
}

func (m *Manager) systemd() bool { return m.cfg.Driver == Systemd }
