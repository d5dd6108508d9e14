package rootfs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/figures"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// dirPool keeps directories with upper and work in them ready for use: making one takes a millisecond on ext4, which a
// container's start need not wait for. Their mode bits do not depend on the umask.
type dirPool struct {
	// size is how many are kept ready, 0 for none.
	size int
	// ready is nil before start, and where size is 0.
	ready        chan string
	hits, misses atomic.Uint64
}

// PoolFigures counts the directories that are kept ready.
func (m *Manager) PoolFigures() figures.Pool {
	p := &m.pool
	return figures.Pool{Name: "root_filesystems", Size: p.size, Ready: len(p.ready), Hits: p.hits.Load(), Misses: p.misses.Load()}
}

// StartPool begins to keep directories ready, until the background group closes. Call it once,
// before the manager is used.
func (m *Manager) StartPool() { m.pool.start(m) }

// start fills the pool and keeps it filled until the store closes.
func (p *dirPool) start(m *Manager) {
	if p.size == 0 {
		return
	}
	p.ready = make(chan string, p.size)
	m.background.Go(func(ctx context.Context) {
		for {
			dir, err := p.make(m)
			if err != nil {
				// The caller that needs one makes it, and returns the error.
				dir = ""
			}
			select {
			case p.ready <- dir:
			case <-ctx.Done():
				return
			}
		}
	})
}

// take returns a ready directory, or makes one.
func (p *dirPool) take(m *Manager) (string, error) {
	select {
	case dir := <-p.ready:
		if dir != "" {
			p.hits.Add(1)
			return dir, nil
		}
	default:
	}
	p.misses.Add(1)
	return p.make(m)
}

func (p *dirPool) make(m *Manager) (_ string, err error) {
	dir := filepath.Join(m.PoolDir(), strings.ToLower(rand.Text()))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.discardDir(dir))
		}
	}()
	m.projects.give(dir)
	// The upper directory's owner and mode are those of the root directory in the
	// container: see describeRoot.
	for name, mode := range map[string]os.FileMode{upperName: 0o755, workName: 0o700} {
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, mode); err != nil {
			return "", err
		}
		if err := os.Chmod(path, mode); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// RenewPool discards the directories that are ready, and returns when others are being made.
func (m *Manager) RenewPool(ctx context.Context) error {
	if m.pool.size == 0 {
		return nil
	}
	// One more than the pool holds is ready.
	for range m.pool.size + 1 {
		select {
		case dir := <-m.pool.ready:
			if dir == "" {
				continue
			}
			if err := m.discardDir(dir); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// CanMount reports whether a root filesystem can have a directory below it: nil, or
// why not. Overlays can be on overlays twice only. What a layer deletes cannot be seen on an overlay, so a copy has it from
// the store alone.
func (m *Manager) CanMount(lower string) (err error) {
	if m.copies {
		return fmt.Errorf("root filesystems are copies: %w", errs.Unsupported)
	}
	dir, err := m.pool.make(m)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	target := filepath.Join(dir, mappedRootfs)
	if err := os.Mkdir(target, 0o700); err != nil {
		return err
	}
	overlay := sysmount.Overlay{
		LowerRoot: filepath.Dir(lower), Lower: []string{filepath.Base(lower)},
		Upper: filepath.Join(dir, upperName), Work: filepath.Join(dir, workName),
	}
	if err := sysmount.MountOverlay(overlay, target); err != nil {
		return err
	}
	return sysmount.Detach(target)
}
