// Package unpack applies image layers in a short-lived confined process.
//
// A layer is input from outside. It is decompressed and unpacked by a child (package child) that has a root with the layer's
// directory and a read-only view of the layers below, no network, a pid namespace of its own, a memory limit, and of root's
// capabilities only those that writing files of any owner takes. Package confine starts it. The child gets the compressed layer as
// an open file and answers with one line of JSON. It also decrypts a layer that is encrypted.
package unpack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/helper/program"
	"github.com/berthrun/berth/internal/image/unpack/child"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/confine"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

const (
	maxNoise = 16 << 10
	// smallLayer is the size in bytes of a file up to which one processor unpacks a layer: with more, Go starts threads that take
	// longer than they would save.
	smallLayer = 256 << 10
	// progressInterval is how often Run looks how far the child has read.
	progressInterval = 100 * time.Millisecond
)

// Job, Secret and Result are those of the child.
type (
	Job    = child.Job
	Secret = child.Secret
	Result = child.Result
)

// Runner starts children.
type Runner struct {
	// Helper is the program that ends up in child.Main; the job is its last argument.
	Helper program.Program
	// Cgroups makes the children's cgroups; nil runs them in ours.
	Cgroups *cgroup.HelperGroups
	// Cache is how many bytes of page cache the children under way may have, all together, beyond child.MemoryLimit for each.
	Cache int64
	// Log takes what does not stop a Run; nil for nothing.
	Log *slog.Logger

	mu      sync.Mutex // guards what follows
	users   int
	starter *confine.Starter // nil before the first child, and after the last release
	// idle are cgroups for the next children, which others have left almost empty. It is nil after the last release.
	idle []*cgroup.HelperGroup
	// cached is how much of Cache the children under way have got.
	cached int64
	// warned is set once the log has that this kernel denies no calls.
	warned bool
}

// Hold keeps what the children share, from the first child until release: several layers follow.
func (r *Runner) Hold() (release func()) {
	program := r.Helper.Hold()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.users++
	return sync.OnceFunc(func() {
		program()
		r.release()
	})
}

// use returns the starter of children, until release.
func (r *Runner) use() (_ *confine.Starter, release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.starter == nil {
		r.starter, err = confine.New([]string{child.UpperName, child.LowerName}, unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER,
			unix.CAP_FSETID, unix.CAP_MKNOD, unix.CAP_SETFCAP)
		if err != nil {
			return nil, nil, fmt.Errorf("unpack helper: %w", err)
		}
		if !r.starter.DeniesCalls() && !r.warned {
			r.warned = true
			r.warn("the kernel has no seccomp filters: unpack helpers can make sockets and user namespaces")
		}
	}
	r.users++
	return r.starter, sync.OnceFunc(r.release), nil
}

func (r *Runner) release() {
	for _, group := range r.releaseShared() {
		r.remove(group)
	}
}

func (r *Runner) remove(group *cgroup.HelperGroup) {
	if err := group.Remove(); err != nil {
		r.warn("cannot remove the cgroup of an unpack helper; the next start removes it", "error", err)
	}
}

func (r *Runner) warn(text string, args ...any) {
	if r.Log != nil {
		r.Log.Warn(text, args...)
	}
}

// releaseShared ends one use, and returns the cgroups that nobody needs any more.
func (r *Runner) releaseShared() []*cgroup.HelperGroup {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users--; r.users > 0 {
		return nil
	}
	if r.starter != nil {
		r.starter.Close()
		r.starter = nil
	}
	idle := r.idle
	r.idle = nil
	return idle
}

// Run unpacks layer into job.Upper in a child and waits for it. read is called
// from time to time with the bytes of the layer that the child has read; it may be nil. What a
// failed Run leaves in job.Upper is the caller's to remove. Kinds: Invalid for a
// bad layer, Exhausted for a full disk or a layer that needs too much memory.
func (r *Runner) Run(ctx context.Context, job Job, layer *os.File, read func(int64)) (_ Result, err error) {
	group, err := r.takeGroup(job.LayerSize)
	if err != nil {
		return Result{}, err
	}
	defer func() { group.leave(err != nil) }()
	if layer, err = readOnly(layer); err != nil {
		return Result{}, err
	}
	defer layer.Close()
	if read != nil {
		defer watch(layer, read)()
	}
	out, err := r.exec(ctx, job, layer, group)
	if err != nil {
		return Result{}, err
	}
	a, err := child.ReadAnswer(out)
	if err != nil {
		return Result{}, err
	}
	if a.Error != "" {
		return Result{}, errorOf(a)
	}
	if used := a.Usage; used != nil && (used.Bytes > job.MaxBytes || used.Inodes > child.MaxInodes) {
		a.Usage = nil // no layer takes that
	}
	return a.Result, markOpaque(ctx, job.Upper, a.Opaque)
}

// exec runs one child.
func (r *Runner) exec(ctx context.Context, job Job, layer *os.File, group *group) ([]byte, error) {
	out := limited{max: child.MaxAnswer + 1}
	noise := limited{max: maxNoise}
	exe, args, releaseProgram, err := r.Helper.Use()
	if err != nil {
		return nil, err
	}
	defer releaseProgram()
	cmd := exec.CommandContext(ctx, exe)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = layer, &out, &noise
	if group.HelperGroup != nil {
		procs, err := os.OpenFile(group.Procs(), os.O_WRONLY, 0)
		if err != nil {
			return nil, fmt.Errorf("cannot open the cgroup of the unpack helper: %w", err)
		}
		defer procs.Close()
		cmd.ExtraFiles, job.Cgroup = []*os.File{procs}, true
	}
	job.Below = len(job.Lower) > 0
	arg, err := json.Marshal(job)
	if err != nil {
		return nil, fmt.Errorf("cannot marshal a job for the unpack helper: %w", err)
	}
	cmd.Args = append(args, string(arg))
	if cmd.Env, err = job.Environment(); err != nil {
		return nil, err
	}
	if isSmall(layer) {
		cmd.Env = append(cmd.Env, "GOMAXPROCS=1")
	}
	starter, release, err := r.use()
	if err != nil {
		return nil, err
	}
	defer release()
	err = starter.Start(ctx, cmd, viewOf(job))
	if err != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("cannot start the unpack helper: %w", err)
	}
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return nil, failure(ctx, err, group.limit, noise.Bytes())
	}
	return out.Bytes(), nil
}

// viewOf returns what the root of the child shows.
func viewOf(job Job) confine.View {
	view := confine.View{Binds: []confine.Bind{{Source: job.Upper, Name: child.UpperName}}}
	switch len(job.Lower) {
	case 0:
	case 1:
		// The kernel makes no overlay of a single read-only layer.
		view.Binds = append(view.Binds, confine.Bind{Source: filepath.Join(job.LowerRoot, job.Lower[0]), Name: child.LowerName, ReadOnly: true})
	default:
		view.Overlay, view.OverlayName = sysmount.Overlay{LowerRoot: job.LowerRoot, Lower: job.Lower}, child.LowerName
	}
	return view
}

func failure(ctx context.Context, err error, limit int64, noise []byte) error {
	if ctx.Err() != nil {
		return fmt.Errorf("cannot unpack a layer: %w", context.Cause(ctx))
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return fmt.Errorf("the unpack helper was killed, probably for using more than %d MiB of memory: %w", limit>>20, errs.Exhausted)
	}
	return fmt.Errorf("the unpack helper failed: %w: %s", err, bytes.TrimSpace(noise))
}

func errorOf(a child.Answer) error {
	if kinds := errs.Kinds(); a.Kind >= 0 && a.Kind < len(kinds) {
		return &helperError{a.Error, kinds[a.Kind]}
	}
	return &helperError{a.Error, nil}
}

// helperError is an error of the child, whose text already ends in its kind's.
type helperError struct {
	text string
	kind error
}

func (e *helperError) Error() string { return e.text }
func (e *helperError) Unwrap() error { return e.kind }

// markOpaque sets what takes a capability that the child does not have.
func markOpaque(ctx context.Context, upper string, dirs []string) error {
	if len(dirs) == 0 {
		return nil
	}
	root, err := os.Open(upper)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, dir := range dirs {
		if ctx.Err() != nil {
			return fmt.Errorf("cannot mark an opaque directory: %w", context.Cause(ctx))
		}
		err := sysfile.SetXattrBeneath(root, dir, sysfile.OverlayOpaque, []byte("y"))
		// A later entry may have replaced the directory.
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, syscall.ELOOP) {
			return fmt.Errorf("cannot mark an opaque directory: %w", err)
		}
	}
	return nil
}

// limited keeps the first max bytes that are written to it.
type limited struct {
	bytes.Buffer
	max int
}

func (l *limited) Write(p []byte) (int, error) {
	if room := l.max - l.Len(); room > 0 {
		l.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
