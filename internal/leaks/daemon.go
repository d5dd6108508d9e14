package leaks

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/finding"
)

// examineDaemon finds a process that has berth's directories and does not answer for them: a second berth cannot start
// beside it. Whether no berth runs at all, the check of runtimes reports.
func examineDaemon(ctx context.Context, f *Facts, r *doctor.Report) error {
	_, asked := f.ask(ctx)
	if asked == nil {
		return nil
	}
	pid, err := f.held(f.lockFile())
	if err != nil {
		return err
	}
	if pid == 0 {
		if !errors.Is(asked, errs.Unavailable) {
			r.Add(finding.Warning, f.Socket, "the berth at "+f.Socket+" does not say what it has records of: "+oneLine(asked), "its log says why; restart it: pods run on")
		}
		return nil
	}
	who, state, command := describe(pid)
	said := fmt.Sprintf("%s has berth's directory %s, and does not answer on %s", who, f.State, f.Socket)
	restart := "systemctl restart berth, or without systemd end " + who + " and start berth again: pods run on"
	_, err = os.Stat(f.Socket)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r.Add(finding.Problem, f.Socket, said+": that socket is not there. Somebody removed it, or this berth listens elsewhere: "+command,
			"if it listens elsewhere, name that socket (--endpoint); else "+restart)
	case strings.HasPrefix(state, "T"), strings.HasPrefix(state, "t"):
		r.Add(finding.Problem, f.Socket, said+": it is "+state+", by a signal or a debugger", fmt.Sprintf("kill -CONT %d", pid))
	default:
		r.Add(finding.Problem, f.Socket, fmt.Sprintf("%s (state %s): %s", said, state, oneLine(asked)), "its log says what it did last; "+restart)
	}
	return nil
}

func (f *Facts) lockFile() string { return filepath.Join(f.State, "daemon.lock") }

// describe names a process, its state as in /proc/PID/status ("T (stopped)") and its command line. pid is -1 for one
// without a number here.
func describe(pid int) (who, state, command string) {
	if pid < 0 {
		return "a process in another PID namespace", "unknown", "unknown"
	}
	who, state, command = fmt.Sprintf("process %d", pid), "unknown", "unknown"
	proc := fmt.Sprintf("/proc/%d", pid)
	if data, err := os.ReadFile(filepath.Join(proc, "status")); err == nil {
		for line := range strings.Lines(string(data)) {
			if value, ok := strings.CutPrefix(line, "State:"); ok {
				state = strings.TrimSpace(value)
			}
		}
	}
	if data, err := os.ReadFile(filepath.Join(proc, "cmdline")); err == nil {
		command = strings.TrimSpace(strings.ReplaceAll(string(data), "\x00", " "))
	}
	return who, state, command
}

func oneLine(err error) string { return strings.Join(strings.Fields(errs.Message(err)), " ") }
