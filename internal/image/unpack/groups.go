package unpack

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/image/unpack/child"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

const (
	// maxIdle cgroups wait for children. Each has at most maxUsed bytes of memory, which its next child cannot use: a small part of
	// child.MemoryLimit.
	maxIdle = 8
	maxUsed = 16 << 20
	// expansion is how many bytes of page cache a byte of a layer may take: it is more than what most compressed layers unpack to.
	expansion = 4
)

// CacheOfHost is a Runner.Cache for this host: an eighth of its memory, 0 if the kernel does not say how much it has.
func CacheOfHost() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit) / 8 //nolint:unconvert // 32 bits on some architectures
}

// group is the cgroup of one child.
type group struct {
	*cgroup.HelperGroup // nil if the child runs in ours
	r                   *Runner
	// limit is how many bytes of memory it may have, cache those of them that are beyond child.MemoryLimit.
	limit, cache int64
}

// takeGroup returns a cgroup for the child that unpacks a layer of some bytes, compressed. The files of a large layer do not
// fit into child.MemoryLimit: the child would wait for the disk while the host has memory that is free. So its cgroup may
// have more, as long as there is some of Cache left. A small layer needs none, so it cannot take more memory, whatever it
// unpacks to.
func (r *Runner) takeGroup(layer int64) (*group, error) {
	g := &group{r: r, limit: child.MemoryLimit}
	if r.Cgroups == nil {
		return g, nil
	}
	g.cache = r.takeCache(layer)
	g.limit += g.cache
	if g.cache == 0 {
		if g.HelperGroup = r.takeIdle(); g.HelperGroup != nil {
			err := g.Renew()
			if err == nil {
				return g, nil
			}
			r.warn("the cgroup of an unpack helper is not used again", "error", err)
			r.remove(g.HelperGroup)
		}
	}
	var err error
	if g.HelperGroup, err = r.Cgroups.New(g.limit); err != nil {
		r.leaveCache(g.cache)
		return nil, fmt.Errorf("unpack helper: %w", err)
	}
	return g, nil
}

// leave keeps the cgroup of a child that has ended for the next one, or removes it. A cgroup takes longer to make and to
// remove than it takes to unpack a small layer, and the kernel keeps a removed one for as long as its page cache.
func (g *group) leave(failed bool) {
	if g.HelperGroup == nil {
		return
	}
	defer g.r.leaveCache(g.cache)
	if !failed && g.cache == 0 {
		if used, err := g.Used(); err == nil && used <= maxUsed && g.r.keepIdle(g.HelperGroup) {
			return
		}
	}
	g.r.remove(g.HelperGroup)
}

func (r *Runner) takeIdle() *cgroup.HelperGroup {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := len(r.idle) - 1
	if last < 0 {
		return nil
	}
	group := r.idle[last]
	r.idle = r.idle[:last]
	return group
}

func (r *Runner) keepIdle(group *cgroup.HelperGroup) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users == 0 || len(r.idle) == maxIdle {
		return false
	}
	r.idle = append(r.idle, group)
	return true
}

// takeCache returns how many bytes beyond child.MemoryLimit the child of a layer may have.
func (r *Runner) takeCache(layer int64) int64 {
	// With half of the limit for its files, a child waits for no disk.
	if layer <= child.MemoryLimit/2/expansion {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// The division is for sizes that a hostile manifest claims.
	got := max(0, r.Cache-r.cached)
	if layer < got/expansion {
		got = layer * expansion
	}
	r.cached += got
	return got
}

func (r *Runner) leaveCache(bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cached -= bytes
}
