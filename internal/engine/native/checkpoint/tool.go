package checkpoint

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/probe"
)

const (
	// askTimeout bounds one question to the program.
	askTimeout = 10 * time.Second
	// outputTimeout bounds the wait for the end of the output of a program that has ended.
	outputTimeout = time.Second
	// maxOutput bounds what is kept of an output.
	maxOutput = 64 << 10
	// faultLife is how long a fault holds before the program is asked again.
	faultLife = time.Minute
	// lookTimeout bounds a look at the program's file, and glanceTimeout one for Last.
	lookTimeout   = 2 * time.Second
	glanceTimeout = 250 * time.Millisecond
)

// Facts are what CRIU says of itself and of the host.
type Facts struct {
	// Version is the first line of `criu --version`.
	Version string
	// Fault is why it cannot be used, "" when it can: it is missing, or `criu check` fails.
	Fault string
	// KeepsNetwork: it can write the processes of a pod without rules in the pod's firewall.
	KeepsNetwork bool
}

// Tool is the program CRIU. It is asked for its facts once for each version of its file.
type Tool struct {
	// Path is absolute.
	Path string

	mu     sync.Mutex
	file   os.FileInfo
	facts  Facts
	at     time.Time
	asking singleflight.Group
	// looks are those at the file, whose file system may hang.
	looks probe.Pool
}

// look looks at the program's file. Kind Unavailable when its file system does not answer in time.
func (t *Tool) look(ctx context.Context, wait time.Duration) (os.FileInfo, error) {
	return probe.AskWithin(ctx, &t.looks, wait, "look at "+t.Path, func() (os.FileInfo, error) { return os.Stat(t.Path) })
}

// Last returns the last facts, and does not wait for the program. Where they may be out of date it lets the program
// be asked in the background, for a later call.
func (t *Tool) Last() Facts {
	info, err := t.look(context.Background(), glanceTimeout)
	if err != nil {
		return Facts{Fault: err.Error()}
	}
	facts, known, holds := t.known(info)
	if !holds {
		t.ask(info)
	}
	if !known {
		return Facts{Fault: "whether it works is not known yet"}
	}
	return facts
}

// Now returns the facts of a program that can be used, and asks it again if it could not when it was asked last.
// Kind Unsupported when it cannot be used, Unavailable when its file system does not answer.
func (t *Tool) Now(ctx context.Context) (Facts, error) {
	info, err := t.look(ctx, lookTimeout)
	if errors.Is(err, errs.Unavailable) {
		return Facts{}, fmt.Errorf("CRIU cannot be used (checkpoint.criu of the configuration): %w", err)
	}
	if err != nil {
		return Facts{}, fmt.Errorf("CRIU is not there (checkpoint.criu of the configuration): %w: %w", err, errs.Unsupported)
	}
	facts, known, _ := t.known(info)
	if !known || facts.Fault != "" {
		select {
		case result := <-t.ask(info):
			facts = result.Val.(Facts)
		case <-ctx.Done():
			return Facts{}, ctx.Err()
		}
	}
	if facts.Fault != "" {
		return Facts{}, fmt.Errorf("CRIU (%s) cannot be used: %s: %w", t.Path, facts.Fault, errs.Unsupported)
	}
	return facts, nil
}

// known returns the facts of this version of the file, and whether the program need not be asked again.
func (t *Tool) known(info os.FileInfo) (facts Facts, known, holds bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	known = t.file != nil && os.SameFile(t.file, info) && t.file.ModTime().Equal(info.ModTime()) && t.file.Size() == info.Size()
	return t.facts, known, known && (t.facts.Fault == "" || time.Since(t.at) < faultLife)
}

// ask asks the program, unless that is under way. The Facts come from the channel, which no one need read.
func (t *Tool) ask(info os.FileInfo) <-chan singleflight.Result {
	return t.asking.DoChan("", func() (any, error) {
		var facts Facts
		// singleflight would end the process for a panic.
		if err := errs.Guard("the question for the features of CRIU", func() error {
			facts = t.question()
			return nil
		}); err != nil {
			facts = Facts{Fault: err.Error()}
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		t.file, t.facts, t.at = info, facts, time.Now()
		return facts, nil
	})
}

// question runs the program. `criu check` fails on a kernel, or with capabilities, that it cannot work with.
func (t *Tool) question() Facts {
	version, err := t.answer("--version")
	if err != nil {
		return Facts{Fault: fmt.Sprintf("criu --version: %v", err)}
	}
	line, _, _ := bytes.Cut(bytes.TrimSpace(version), []byte("\n"))
	facts := Facts{Version: strings.ToValidUTF8(strings.TrimPrefix(fmt.Sprintf("%.200s", line), "Version: "), "?")}
	if _, err := t.answer("check"); err != nil {
		facts.Fault = fmt.Sprintf("criu check: %v", err)
		return facts
	}
	facts.KeepsNetwork, err = t.keepsNetwork()
	if err != nil {
		facts.Fault = err.Error()
	}
	return facts
}

// keepsNetwork reports whether --network-lock has skip. CRIU's help does not have it in any version; the program refuses
// a value that it does not know before it answers.
func (t *Tool) keepsNetwork() (bool, error) {
	ctx, stop := context.WithTimeout(context.Background(), askTimeout)
	defer stop()
	_, err := run(ctx, "/", t.Path, "--network-lock", "skip", "--version")
	var refused *exec.ExitError
	if ctx.Err() == nil && (err == nil || errors.As(err, &refused)) {
		return err == nil, nil
	}
	return false, fmt.Errorf("criu --network-lock skip --version: %w", cmp.Or(ctx.Err(), err))
}

func (t *Tool) answer(question string) ([]byte, error) {
	ctx, stop := context.WithTimeout(context.Background(), askTimeout)
	defer stop()
	out, err := run(ctx, "/", t.Path, question)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("no answer in %v", askTimeout)
	}
	if err != nil {
		return nil, errors.New(cmp.Or(Reason(out), err.Error()))
	}
	return out, nil
}

// run runs the program in a directory, and returns the end of its output. When ctx or this process ends first, the
// program is killed, with what it has started.
func run(ctx context.Context, dir, path string, args ...string) ([]byte, error) {
	var out tail
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	cmd.Env = []string{"PATH=" + cmp.Or(os.Getenv("PATH"), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), "HOME=/"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = outputTimeout
	// The kernel sends the signal of the parent's death when this thread ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it ended well; a child of it kept the output open
	}
	return out.data, err
}

// tail keeps the end of an output.
type tail struct{ data []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.data = append(t.data, p...)
	if over := len(t.data) - maxOutput; over > 0 {
		t.data = append(t.data[:0], t.data[over:]...)
	}
	return len(p), nil
}

const (
	// maxReasons and maxReason bound the lines of CRIU's log in an error, and their length.
	maxReasons = 2
	maxReason  = 300
)

// Reason returns the first errors in a log of CRIU, "" when there are none. A limit that CRIU cannot raise for itself is
// in each log of a host without CAP_SYS_RESOURCE, and is not the cause.
func Reason(log []byte) string {
	var found []string
	for line := range bytes.Lines(log) {
		_, text, is := bytes.Cut(line, []byte("Error ("))
		if !is || bytes.Contains(text, []byte("rlimit: Can't setup")) {
			continue
		}
		if _, after, ok := bytes.Cut(text, []byte("): ")); ok {
			text = after
		}
		found = append(found, strings.ToValidUTF8(fmt.Sprintf("%.*s", maxReason, bytes.TrimSpace(text)), "?"))
		if len(found) == maxReasons {
			break
		}
	}
	return strings.Join(found, "; ")
}
