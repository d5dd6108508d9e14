package shim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/shim/sink"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Begin has a process take the events of the shims that a predecessor has started.
func (s *Shims) Begin() error {
	pods, err := os.ReadDir(filepath.Join(s.dir, groupsName))
	if err != nil {
		return fmt.Errorf("cannot list the shims: %w", err)
	}
	if len(pods) == 0 {
		s.endSink(context.Background())
		return nil
	}
	return s.listen()
}

// listen has a sink take the events of shims: the one that a predecessor has left, or another. One that is killed is
// replaced at once.
func (s *Shims) listen() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listenLocked()
}

func (s *Shims) listenLocked() error {
	if s.sink != nil {
		if ended, err := sysproc.PidfdEnded(s.sink); err == nil && !ended {
			return nil
		}
	}
	pidfd, its, err := s.openSink()
	if err == nil {
		if _, statErr := os.Lstat(filepath.Join(s.dir, sink.HoldName)); errors.Is(statErr, fs.ErrNotExist) { // that of an earlier berth
			err = cmp.Or(s.killSink(context.Background(), pidfd, its), fmt.Errorf("it takes no connections: %w", errs.NotFound))
		}
	}
	if errors.Is(err, errs.NotFound) {
		pidfd, err = s.startSink()
	}
	if err != nil {
		return fmt.Errorf("cannot take the events of shims: %w", err)
	}
	s.sink = pidfd
	go errs.Protect("events of shims", func() { s.watchSink(pidfd) })
	return nil
}

// openSink opens the process of the sink. Kind NotFound when there is none.
func (s *Shims) openSink() (pidfd *os.File, its process, err error) {
	path := filepath.Join(s.dir, sink.LockName)
	pid, err := sysfd.LockHolder(path)
	if err != nil {
		return nil, process{}, err
	}
	if pid <= 0 {
		return nil, process{}, fmt.Errorf("process that holds %s: %w", path, errs.NotFound)
	}
	if pidfd, err = sysproc.OpenPidfd(pid); err != nil {
		return nil, process{}, err
	}
	proc, err := sysproc.ReadProc(pid)
	now, lockErr := sysfd.LockHolder(path)
	if err = errors.Join(err, lockErr); err == nil && now != pid {
		err = fmt.Errorf("process %d: %w", pid, errs.NotFound)
	}
	if err != nil {
		pidfd.Close()
		return nil, process{}, err
	}
	return pidfd, process{pid, proc.Start}, nil
}

// startSink starts a sink, and returns when it listens.
func (s *Shims) startSink() (*os.File, error) {
	cmd := exec.Command("/proc/self/exe", sink.Role, s.dir) //nolint:noctx // it outlives the call
	cmd.Env, cmd.Stderr = []string{"GOMAXPROCS=2"}, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start a process: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it logs its own errors
		close(ended)
	}()
	ctx, stop := context.WithTimeout(context.Background(), connectTimeout)
	defer stop()
	for {
		pidfd, _, err := s.openSink()
		if err == nil {
			conn, dialErr := dial(ctx, filepath.Join(s.dir, sink.SocketName))
			if dialErr == nil {
				conn.Close()
				return pidfd, nil
			}
			pidfd.Close()
			err = dialErr
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("its process does not listen: %w", err), cmd.Process.Kill())
		case <-ended:
			return nil, fmt.Errorf("its process has ended: %w", err)
		case <-time.After(time.Millisecond):
		}
	}
}

// watchSink replaces a sink that has ended, unless endSink has ended it.
func (s *Shims) watchSink(pidfd *os.File) {
	defer pidfd.Close()
	err := sysproc.AwaitExit(context.Background(), pidfd)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sink != pidfd {
		return
	}
	s.sink = nil
	if err == nil {
		s.log.Warn("the process that takes the events of shims has ended; starting another one")
		err = s.listenLocked()
	}
	if err != nil {
		s.log.Error("shims cannot report events, and may end", "error", err)
	}
}

// killSink ends the process of a sink, and closes pidfd.
func (s *Shims) killSink(ctx context.Context, pidfd *os.File, its process) error {
	ctx, stop := context.WithTimeout(ctx, killTimeout)
	defer stop()
	err := sysproc.SignalPidfd(pidfd, syscall.SIGKILL)
	if err == nil {
		err = sysproc.AwaitExit(ctx, pidfd)
	}
	pidfd.Close()
	s.forget(its.Pid, its.Start)
	return err
}

// endSink ends the sink when no pod has a shim.
func (s *Shims) endSink(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if pods, err := os.ReadDir(filepath.Join(s.dir, groupsName)); err != nil || len(pods) > 0 {
		return
	}
	s.sink = nil // watchSink closes it
	pidfd, its, err := s.openSink()
	if err == nil {
		err = s.killSink(ctx, pidfd, its)
	}
	if errs.IgnoreNotFound(err) != nil {
		s.log.Warn("cannot end the process that takes the events of shims", "error", err)
		return
	}
	for _, name := range []string{sink.SocketName, sink.HoldName, sink.LockName} {
		_ = os.Remove(filepath.Join(s.dir, name))
	}
}
