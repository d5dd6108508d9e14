package rootfs

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/sys/sysquota"
)

// Where the file system has project quotas, the directory of each root filesystem is a project of its own, and all in it
// belongs to that. So the kernel counts what the container writes, and limits it.
//
// No file lists the projects. A directory knows its own, and a project is free when the kernel counts no files of it: a
// directory in the trash keeps its project until it is gone. A process that is killed leaves a project with files, which a
// later one finds, or a limit without files, which goes when the project is given again.

// Projects is how many projects are berth's, from the first one on.
const Projects = 1 << 20

// errNoProjects is why no limit holds without a first project.
var errNoProjects = fmt.Errorf("project quotas are turned off: %w", errs.Unsupported)

// projects gives directories their projects.
type projects struct {
	// parent is a directory whose directories are never all of one project of berth's: ContainersDir.
	parent string
	// first is the first id, 0 to give none.
	first uint32
	log   *slog.Logger

	// mu guards next, which is the id to try next, counted from first, and warned.
	mu     sync.Mutex
	next   uint32
	warned bool
}

// CanLimit returns nil if RootfsSpec.Limit can hold, and else an error of kind Unsupported. first is that of Config.
func (p Paths) CanLimit(first uint32) error {
	if first == 0 {
		return errNoProjects
	}
	return sysquota.CanLimit(p.ContainersDir())
}

// give makes an empty directory a project, with all that is made in it later. Where that fails it belongs to none: its size
// is then that of its files, and it cannot have a limit.
func (p *projects) give(dir string) {
	if p.first == 0 || errors.Is(sysquota.CanCount(p.parent), errs.Unsupported) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.choose(dir)
	if err != nil && !p.warned {
		p.log.Warn("cannot give the directory of a root filesystem a project of its own: it cannot have a limit, and its files are counted one by one", "directory", dir, "error", err)
	}
	p.warned = err != nil
}

// choose gives a directory the next free project. p.mu is held.
func (p *projects) choose(dir string) error {
	named, err := sysquota.Named()
	if err != nil {
		return err
	}
	for range Projects {
		id := p.first + p.next
		p.next = (p.next + 1) % Projects
		if named[id] {
			continue
		}
		quota, err := sysquota.Of(dir, id)
		if err != nil {
			return err
		}
		if quota.Inodes > 0 {
			continue
		}
		if err := sysquota.SetProject(dir, id); err != nil {
			return err
		}
		// Another berth on the file system may have chosen it at the same moment. Then both see two, and go on.
		if quota, err = sysquota.Of(dir, id); err != nil {
			return err
		}
		if quota.Inodes > 1 {
			continue
		}
		if quota.Limit > 0 {
			return sysquota.SetLimit(dir, id, 0)
		}
		return nil
	}
	return fmt.Errorf("all %d projects from %d on have files: %w", Projects, p.first, errs.Exhausted)
}

// of returns the project of a directory of a root filesystem, 0 for none of its own: an administrator may have given one
// project to all of berth's directories.
func (p *projects) of(dir string) (uint32, error) {
	own, err := sysquota.ProjectOf(dir)
	if err != nil || !own.Inherited {
		return 0, err
	}
	above, err := sysquota.ProjectOf(p.parent)
	if err != nil || own.ID == above.ID {
		return 0, err
	}
	return own.ID, nil
}

// limit limits the bytes that are written into a directory that give was called with, beside its copy, which may be nil. Kind
// Unsupported where no limit holds.
func (p *projects) limit(dir string, copy *copied, bytes int64) error {
	if p.first == 0 {
		return errNoProjects
	}
	if err := sysquota.CanLimit(p.parent); err != nil {
		return err
	}
	id, err := p.of(dir)
	if err == nil && id == 0 {
		err = fmt.Errorf("its directory was made without a project of its own (see berth's log); restart berth: %w", errs.Unsupported)
	}
	if err != nil {
		return err
	}
	if copy == nil {
		copy = &copied{}
	}
	return sysquota.SetLimitBeside(dir, id, sysquota.Quota{Bytes: copy.Bytes, Inodes: copy.Inodes}, bytes)
}

// drop removes the limit of a directory that is removed. The kernel forgets the project with its last file.
func (p *projects) drop(dir string) {
	id, err := p.of(dir)
	if err != nil || id == 0 {
		return
	}
	if err := sysquota.SetLimit(dir, id, 0); err != nil {
		p.log.Warn("cannot remove the limit of a root filesystem; whoever gets its project next removes it", "directory", dir, "project", id, "error", err)
	}
}

// used returns what is in a directory by its project. ok is false where it has none, or the kernel counts no projects.
func (p *projects) used(dir string) (quota sysquota.Quota, ok bool, err error) {
	id, err := p.of(dir)
	if err != nil || id == 0 {
		return quota, false, err
	}
	quota, err = sysquota.Of(dir, id)
	return quota, err == nil && quota.Inodes > 0, err
}

// Written adds up what all root filesystems take by their projects, copies included. ok is false if there are some without one.
func (m *Manager) Written() (usage image.Usage, ok bool, err error) {
	if m.projects.first == 0 || sysquota.CanCount(m.ContainersDir()) != nil {
		return usage, false, nil
	}
	m.mu.RLock()
	keys := make([]string, 0, len(m.uses))
	for key := range m.uses {
		keys = append(keys, key)
	}
	m.mu.RUnlock()
	usage = image.Usage{Mountpoint: m.Root, At: time.Now()}
	dirs, err := filepath.Glob(filepath.Join(m.CopiesDir(), "*"))
	if err != nil {
		return usage, false, err
	}
	for _, key := range keys {
		dirs = append(dirs, m.containerDir(key))
	}
	for _, dir := range dirs {
		quota, counted, err := m.projects.used(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue // being made or removed
		}
		if err != nil || !counted {
			return image.Usage{}, false, err
		}
		usage.Bytes += quota.Bytes
		usage.Inodes += quota.Inodes
	}
	return usage, true, nil
}
