package unpack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/helper/program"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

const (
	// MemoryLimit of the child's cgroup, page cache of what it writes included.
	MemoryLimit = 512 << 20

	maxAnswer = 64 << 20
	maxNoise  = 16 << 10
	// progressInterval is how often Run looks how far the child has read.
	progressInterval = 100 * time.Millisecond
)

// Runner starts children.
type Runner struct {
	// Helper is the program that ends up in Main; the job is its last argument.
	Helper program.Program
	// Cgroups makes the children's cgroups; nil runs them in ours.
	Cgroups *cgroup.HelperGroups
}

// Run unpacks layer into job.Upper in a child and waits for it. read is called
// from time to time with the bytes of the layer that the child has read; it may be nil. What a
// failed Run leaves in job.Upper is the caller's to remove. Kinds: Invalid for a
// bad layer, Exhausted for a full disk or a layer that needs too much memory.
func (r *Runner) Run(ctx context.Context, job Job, layer *os.File, read func(int64)) (Result, error) {
	if r.Cgroups != nil {
		group, err := r.Cgroups.New(MemoryLimit)
		if err != nil {
			return Result{}, fmt.Errorf("unpack helper: %w", err)
		}
		defer group.Remove()
		job.Cgroup = group.Procs()
	}
	if read != nil {
		defer watch(layer, read)()
	}
	out, err := r.exec(ctx, job, layer)
	if err != nil {
		return Result{}, err
	}
	var a answer
	if err := json.Unmarshal(out, &a); err != nil {
		return Result{}, fmt.Errorf("cannot read the answer of the unpack helper: %w", err)
	}
	if a.Error != "" {
		return Result{}, a.err()
	}
	return a.Result, markOpaque(job.Upper, a.Opaque)
}

// exec runs one child on a thread of its own: the kernel kills a child with the
// thread that started it.
func (r *Runner) exec(ctx context.Context, job Job, layer *os.File) ([]byte, error) {
	arg, err := json.Marshal(job)
	if err != nil {
		return nil, fmt.Errorf("cannot marshal a job for the unpack helper: %w", err)
	}
	env, err := job.environment()
	if err != nil {
		return nil, err
	}
	out := limited{max: maxAnswer}
	noise := limited{max: maxNoise}
	exe, args, release, err := r.Helper.Use()
	if err != nil {
		return nil, err
	}
	defer release()
	cmd := exec.CommandContext(ctx, exe)
	cmd.Args = append(args, string(arg))
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = layer, &out, &noise
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID |
			syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		Pdeathsig: syscall.SIGKILL,
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- cmd.Run()
	}()
	if err := <-done; err != nil {
		return nil, failure(ctx, err, noise.Bytes())
	}
	return out.Bytes(), nil
}

func failure(ctx context.Context, err error, noise []byte) error {
	if ctx.Err() != nil {
		return fmt.Errorf("cannot unpack a layer: %w", context.Cause(ctx))
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return fmt.Errorf("the unpack helper was killed, probably for using more than %d MiB of memory: %w", MemoryLimit>>20, errs.Exhausted)
	}
	return fmt.Errorf("the unpack helper failed: %w: %s", err, bytes.TrimSpace(noise))
}

func (a answer) err() error {
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
func markOpaque(upper string, dirs []string) error {
	if len(dirs) == 0 {
		return nil
	}
	root, err := os.Open(upper)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, dir := range dirs {
		err := sysfile.SetXattrBeneath(root, dir, sysfile.OverlayOpaque, []byte("y"))
		// A later entry may have replaced the directory.
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, syscall.ELOOP) {
			return fmt.Errorf("cannot mark an opaque directory: %w", err)
		}
	}
	return nil
}

// watch reports the file's offset to read. The child shares the offset.
func watch(layer *os.File, read func(int64)) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(progressInterval)
		defer ticker.Stop()
		for {
			select {
			case <-quit:
				return
			case <-ticker.C:
				if offset, err := layer.Seek(0, io.SeekCurrent); err == nil {
					read(offset)
				}
			}
		}
	}()
	return func() { close(quit); <-done }
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
