package selinux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/keyed"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// Attribute is where the kernel keeps a file's label.
const Attribute = "security.selinux"

// Bounds of relabelling.
const (
	// parallelVolumes are relabelled at a time on the host, by parallelFiles each.
	parallelVolumes = 8
	parallelFiles   = 8
	// maxDepth bounds the directories in a directory: each is open meanwhile.
	maxDepth = 256
	// reportEvery is how often progress is reported.
	reportEvery = time.Second
)

// Relabeller gives the files of volumes their labels. It sets the label of a volume's root
// last: where the root has the label, all files have it, and the volume is skipped. A pod
// that is created again, or a request that is repeated, costs nothing. All methods are safe
// for concurrent use.
type Relabeller struct {
	attr  string
	slots chan struct{}
	// written is the type of files that keep their labels, "" for none. tolerant
	// leaves directories alone that are too deep, rather than fail.
	written  string
	tolerant bool

	// volumes are those that are worked on, with the number of files that were looked at.
	volumes keyed.Flights[atomic.Int64, struct{}]
}

type volume struct{ path, label string }

// NewRelabeller returns a Relabeller that sets the given attribute.
func NewRelabeller(attr string) *Relabeller {
	return &Relabeller{attr: attr, slots: make(chan struct{}, parallelVolumes)}
}

// forStore makes r one for a store of layers. Files of the given type, which containers wrote,
// keep their labels, and directories that are nested too deep are skipped.
func (r *Relabeller) forStore(written string) *Relabeller {
	r.written, r.tolerant = written, true
	return r
}

// Relabel gives root and all below it the label, and returns when that is done or
// ctx ends. Links are labelled and not followed. File systems without labels are
// left alone. progress, if not nil, is called now and then with the number of files so far.
// Kind Invalid for directories of the system, which are no volumes.
func (r *Relabeller) Relabel(ctx context.Context, root, label string, progress func(files int64)) error {
	if slices.Contains(systemPaths(), path.Clean(root)) {
		return fmt.Errorf("relabel failed %s: SELinux relabeling of a directory of the system is not allowed: %w", root, errs.Invalid)
	}
	v := volume{path.Clean(root), label}
	flight, err := r.volumes.Join(ctx, "relabelling of "+v.path+" as "+v.label, func(ctx context.Context, files *atomic.Int64) (struct{}, error) {
		return struct{}{}, r.run(ctx, v, files)
	})
	if err != nil {
		return fmt.Errorf("relabel failed %s: an earlier run has not ended: %w", root, ctx.Err())
	}
	defer flight.Leave()
	ticker := time.NewTicker(reportEvery)
	defer ticker.Stop()
	for last := int64(0); ; {
		select {
		case <-flight.Done():
			_, err := flight.Result()
			return err
		case <-ctx.Done():
			return fmt.Errorf("relabel failed %s: %d files were looked at: %w", root, flight.Shared.Load(), ctx.Err())
		case <-ticker.C:
			if now := flight.Shared.Load(); progress != nil && now != last {
				last = now
				progress(now)
			}
		}
	}
}

// Set gives one file the label, and nothing below it.
func (r *Relabeller) Set(path, label string) error {
	f, err := os.OpenFile(path, sysfile.OpenPath|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return sysfile.SetXattr(f, r.attr, label)
}

// run labels one volume. It ends with ctx. A later run begins again, and skips the files
// that have the label.
func (r *Relabeller) run(ctx context.Context, v volume, files *atomic.Int64) error {
	select {
	case r.slots <- struct{}{}:
		// A file system that hangs keeps its thread, not its place.
		release := sync.OnceFunc(func() { <-r.slots })
		defer release()
		defer context.AfterFunc(ctx, release)()
	case <-ctx.Done():
		return ctx.Err()
	}
	root, err := os.OpenFile(v.path, sysfile.OpenPath, 0)
	if err != nil {
		return fmt.Errorf("relabel failed %s: %w", v.path, err)
	}
	defer root.Close()
	now, err := sysfile.Xattr(root, r.attr)
	if err == nil && trimmed(now) == v.label {
		return nil
	}
	if takes, err := sysfile.TakesXattr(root, r.attr); err != nil || !takes {
		return relabelError(v.path, err)
	}
	info, err := root.Stat()
	if err != nil {
		return relabelError(v.path, err)
	}
	if info.IsDir() {
		dir, err := os.Open(v.path)
		if err != nil {
			return relabelError(v.path, err)
		}
		w := &walk{r: r, label: v.label, files: files}
		w.group, ctx = errgroup.WithContext(ctx)
		w.group.SetLimit(parallelFiles)
		err = w.directory(ctx, dir, 0)
		if err := errors.Join(err, w.group.Wait()); err != nil {
			return relabelError(v.path, err)
		}
	}
	return relabelError(v.path, sysfile.SetXattr(root, r.attr, v.label))
}

func relabelError(root string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("relabel failed %s: %w", root, err)
}

// walk is one way through a volume.
type walk struct {
	r     *Relabeller
	label string
	files *atomic.Int64
	group *errgroup.Group
}

// directory labels all in dir, and closes it. Subdirectories go to other threads
// while there are any.
func (w *walk) directory(ctx context.Context, dir *os.File, depth int) error {
	defer dir.Close()
	if depth > maxDepth && w.r.tolerant {
		return nil
	}
	if depth > maxDepth {
		return fmt.Errorf("%s: more than %d directories in one another: %w", dir.Name(), maxDepth, errs.Invalid)
	}
	for {
		entries, err := dir.ReadDir(1024)
		for _, entry := range entries {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := w.entry(ctx, dir, entry, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (w *walk) entry(ctx context.Context, dir *os.File, entry fs.DirEntry, depth int) error {
	w.files.Add(1)
	f, err := sysfile.OpenEntry(dir, entry.Name())
	if err == nil {
		err = w.set(f)
		f.Close()
	}
	if err != nil || !entry.IsDir() {
		return errs.IgnoreNotExist(err)
	}
	sub, err := sysfile.OpenDirectory(dir, entry.Name())
	if errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP) {
		return nil // no directory any more
	}
	if err != nil {
		return errs.IgnoreNotExist(err)
	}
	guarded := func() error {
		return errs.Guard("relabelling of "+sub.Name(), func() error { return w.directory(ctx, sub, depth+1) })
	}
	if !w.group.TryGo(guarded) {
		return w.directory(ctx, sub, depth+1)
	}
	return nil
}

// set writes the label where it differs: reading is cheap, and needs no journal.
func (w *walk) set(f *os.File) error {
	now, err := sysfile.Xattr(f, w.r.attr)
	if err == nil && (trimmed(now) == w.label || w.r.written != "" && typeOf(now) == w.r.written) {
		return nil
	}
	err = sysfile.SetXattr(f, w.r.attr, w.label)
	if errors.Is(err, syscall.ENOTSUP) {
		return nil // a file system of its own, without labels
	}
	return err
}

// trimmed is a label without the zero byte that some tools write behind it.
func trimmed(label string) string {
	if n := len(label); n > 0 && label[n-1] == 0 {
		return label[:n-1]
	}
	return label
}

// systemPaths hold more than a volume: their labels are the system's own.
func systemPaths() []string {
	return []string{
		"/", "/bin", "/boot", "/dev", "/etc", "/etc/passwd", "/etc/pki", "/etc/shadow", "/home", "/lib", "/lib64",
		"/media", "/opt", "/proc", "/root", "/run", "/sbin", "/srv", "/sys", "/tmp", "/usr", "/var", "/var/lib", "/var/log",
	}
}

// Shared is a mount label that every container may use, whatever its categories.
func Shared(mount string) string {
	level := levelOf(mount)
	if level == "" {
		return mount
	}
	return mount[:len(mount)-len(level)] + "s0"
}
