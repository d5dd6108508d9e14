// Package spawn finds a supervisor that answers, or starts the keeper that starts one. It owns
// neither of the two processes: see package keep.
package spawn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/keep"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// Options configure Ensure.
type Options struct {
	// Binary is berth-supervisor.
	Binary string
	// StateDir is the supervisor's state directory, which exists. Its socket is
	// supervisor.sock in there.
	StateDir string
	// Args are more flags for the supervisor.
	Args []string
	// LogFile gets what keeper and supervisor log; "" discards it.
	LogFile string
	// Cgroup is the name of the cgroup that the two are moved to, below the root
	// of each hierarchy: "berth-<instance>-supervisor". "" leaves them in the
	// daemon's.
	Cgroup string
	// Unit, when not "", is the systemd unit of the supervisor: Ensure lets systemd start it,
	// and starts no process itself. It is for a daemon that is a unit, too.
	Unit string
}

const (
	socketName = "supervisor.sock"
	// ensureTimeout bounds Ensure when its context has no deadline.
	ensureTimeout = 30 * time.Second
	// probeEvery is how often the socket is tried while a keeper brings it up.
	probeEvery = 5 * time.Millisecond
	// maxLog is the size from which the log file is rotated when a keeper is started.
	maxLog = 16 << 20
	// logTail is how much of the log an error quotes.
	logTail = 2048
)

// Socket is where a supervisor of stateDir answers.
func Socket(stateDir string) string { return filepath.Join(stateDir, socketName) }

// Ensure returns nil when a supervisor answers at Socket(o.StateDir): an existing
// one, or one whose keeper Ensure starts, detached from the caller. Concurrent
// callers, also in different processes, start one keeper: its lock decides. Kind
// Unavailable when none answers in time, NotFound when the program does not exist.
func Ensure(ctx context.Context, o Options) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, ensureTimeout)
		defer cancel()
	}
	if answers(ctx, o.StateDir) {
		return nil
	}
	if o.Unit != "" {
		if err := askSystemd(ctx, o.Unit); err != nil {
			return err
		}
		return awaitAnswer(ctx, o, nil)
	}
	for {
		holder, err := sysfd.LockHolder(filepath.Join(o.StateDir, keep.LockName))
		if err != nil {
			return err
		}
		var ended <-chan error
		if holder == 0 {
			if ended, err = start(o); err != nil {
				return err
			}
		}
		err = awaitAnswer(ctx, o, ended)
		if !errors.Is(err, errKeeperEnded) {
			return err
		}
		// It lost the race for the lock, or the keeper before it was still ending.
	}
}

// errKeeperEnded means that the started keeper has ended, since another one holds the lock or
// held it a moment ago. A retry may succeed.
var errKeeperEnded = errors.New("keeper ended")

// awaitAnswer waits until the supervisor answers. ended has the end of the keeper that was
// started; it is nil when another one was there.
func awaitAnswer(ctx context.Context, o Options, ended <-chan error) error {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("supervisor at %s: %w: %w%s", Socket(o.StateDir), errs.Unavailable, ctx.Err(), quoteLog(o.LogFile))
		case err := <-ended:
			return judgeEnd(o, err)
		case <-tick.C:
			if answers(ctx, o.StateDir) {
				return nil
			}
			if ended == nil && o.Unit == "" && keeperless(o.StateDir) {
				return errKeeperEnded
			}
		}
	}
}

// judgeEnd returns errKeeperEnded for a keeper that lost a race, another error for one that
// cannot run.
func judgeEnd(o Options, err error) error {
	if err == nil || !keeperless(o.StateDir) {
		return errKeeperEnded
	}
	return fmt.Errorf("cannot start the supervisor's keeper: %w: %w%s", errs.Unavailable, err, quoteLog(o.LogFile))
}

func keeperless(stateDir string) bool {
	holder, err := sysfd.LockHolder(filepath.Join(stateDir, keep.LockName))
	return err == nil && holder == 0
}

// answers reports whether a supervisor answers at the socket. A connection is no proof: a child
// that the supervisor was forking when it was killed has its descriptors until its own execve,
// also the socket, and the kernel connects us to that child. Only the supervisor has the lock.
func answers(ctx context.Context, stateDir string) bool {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", Socket(stateDir))
	if err != nil {
		return false
	}
	conn.Close()
	holder, err := sysfd.LockHolder(filepath.Join(stateDir, keep.SupervisorLockName))
	return err == nil && holder != 0
}

func askSystemd(ctx context.Context, unit string) error {
	out, err := exec.CommandContext(ctx, "systemctl", "start", "--no-block", "--", unit).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cannot start %s: %w: %w: %s", unit, errs.Unavailable, err, bytes.TrimSpace(out))
	}
	return nil
}

// start runs a keeper in a session of its own. ended gets its end. While this process lives it
// is the keeper's parent and has to wait for it; later pid 1 does.
func start(o Options) (<-chan error, error) {
	log, err := openLog(o.LogFile)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	binary, err := filepath.Abs(o.Binary)
	if err != nil {
		return nil, fmt.Errorf("cannot find the supervisor's program: %w", err)
	}
	cmd := &exec.Cmd{
		Path:        binary,
		Args:        append([]string{binary}, keep.CommandLine(o.StateDir, o.Cgroup, o.Args)...),
		Env:         []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Dir:         "/",
		Stdout:      log,
		Stderr:      log,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	err = cmd.Start()
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("supervisor's program %s: %w", o.Binary, errs.NotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot start the supervisor's keeper: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return ended, nil
}

// openLog opens the log for appending. It renames a long log first.
func openLog(path string) (*os.File, error) {
	if path == "" {
		return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	if info, err := os.Stat(path); err == nil && info.Size() > maxLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("cannot rename the supervisor's log: %w", err)
		}
	}
	log, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the supervisor's log: %w", err)
	}
	return log, nil
}

// quoteLog returns the end of the log, for an error, "" when there is none.
func quoteLog(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	tail := make([]byte, min(size, logTail))
	if _, err := f.ReadAt(tail, size-int64(len(tail))); err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	text := strings.TrimSpace(string(tail))
	if text == "" {
		return ""
	}
	return fmt.Sprintf(" (end of %s: %s)", path, text)
}
