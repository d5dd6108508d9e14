package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berthrun/berth/internal/network/cni/plugin"
	"github.com/berthrun/berth/internal/sys/sysns"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// executor runs plugins: some in process (see wayOf), all others as programs, each in its own
// process group. It kills the whole group at its deadline. Nothing would undo what a plugin does after DEL, so a
// plugin does not outlive the daemon, and endPlugins kills what it has started. The programs of iptables that plugins
// in process start at once (package xtables) end with the daemon too; those that go-iptables and knftables start
// may outlive it, for as long as they wait for the lock of iptables, which has a limit.
type executor struct {
	version.PluginDecoder
	hostNetNS string
	own       inProcess
	turns     turns
	observer  Observer
}

func newExecutor(cfg *Config) *executor {
	if cfg.Observer == nil {
		cfg.Observer = unobserved{}
	}
	return &executor{
		hostNetNS: cfg.HostNetNS,
		own:       inProcess{off: cfg.ProgramsOnly},
		turns:     turns{limit: cfg.MaxProcesses, programs: map[string]*program{}},
		observer:  cfg.Observer,
	}
}

var _ invoke.Exec = (*executor)(nil)

const (
	// outputTimeout is how long a plugin's output may stay open after its end.
	outputTimeout = time.Second
	// busyPause is between two tries of a plugin that is being installed.
	busyPause = 100 * time.Millisecond
)

// FindInPath finds a plugin.
func (e *executor) FindInPath(plugin string, paths []string) (string, error) {
	return e.findInPath(plugin, paths)
}

// ExecPlugin runs a plugin and returns what it printed.
func (e *executor) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) (stdout []byte, err error) {
	return e.call(ctx, path, stdin, environ, func(p *plugin.Plugin) ([]byte, error) { return e.runInProcess(ctx, p, stdin, environ) })
}

// call runs a plugin as a program, or in process by means of inProcess.
func (e *executor) call(ctx context.Context, path string, stdin []byte, environ []string, inProcess func(*plugin.Plugin) ([]byte, error)) (stdout []byte, err error) {
	defer e.observe(path, environ, time.Now(), &err)
	how, err := e.wayOf(path, variable(environ, "CNI_COMMAND"), stdin)
	if err != nil {
		return nil, err
	}
	if how.plugin != nil {
		return inProcess(how.plugin)
	}
	return e.execProgram(ctx, path, stdin, environ)
}

// observe is deferred: it reports a call that began at a time, with its error.
func (e *executor) observe(path string, environ []string, began time.Time, err *error) {
	e.observer.PluginCalled(filepath.Base(path), variable(environ, "CNI_COMMAND"), time.Since(began), *err)
}

func (e *executor) execProgram(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	end, err := e.turns.take(ctx, path, environ)
	if err != nil {
		return nil, err
	}
	defer end()
	for {
		stdout, stderr, err := e.run(ctx, path, stdin, environ)
		switch {
		case err == nil:
			return stdout, nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("killed: %w%s", ctx.Err(), quoteOutput(stderr))
		case !errors.Is(err, syscall.ETXTBSY):
			return nil, pluginError(err, stdout, stderr)
		}
		select {
		case <-ctx.Done():
		case <-time.After(busyPause):
		}
	}
}

func (e *executor) run(ctx context.Context, path string, stdin []byte, environ []string) (stdout, stderr []byte, err error) {
	var out, errOut bytes.Buffer
	run := func() error {
		cmd := exec.CommandContext(ctx, path)
		cmd.Env = environment(environ)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &errOut
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		cmd.WaitDelay = outputTimeout
		err := cmd.Run()
		if errors.Is(err, exec.ErrWaitDelay) {
			return nil // it ended well; a child of it kept the output open
		}
		return err
	}
	if e.hostNetNS != "" {
		err = sysns.InNetNS(e.hostNetNS, run)
	} else {
		// Pdeathsig comes when the thread that started the process ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err = run()
	}
	return out.Bytes(), errOut.Bytes(), err
}

// turns bounds how many processes of each program run at once. A program that hangs has its own and those behind it wait,
// and no other program does.
type turns struct {
	limit int // 0: there is none

	mu       sync.Mutex
	programs map[string]*program // by path
}

// program is what is known of the processes of one program.
type program struct {
	turns chan struct{}      // one entry for each process
	calls map[*turn]struct{} // guarded by turns.mu
}

// turn is one call of a program, or one that a collection waits for.
type turn struct {
	what  string
	since time.Time
}

// take waits for a turn of the program at path; those that wait get turns in the order of their calls. STATUS and VERSION
// need none: they are for no pod, and there is one of them at a time.
func (t *turns) take(ctx context.Context, path string, environ []string) (end func(), err error) {
	verb := variable(environ, "CNI_COMMAND")
	if t.limit == 0 || verb == "STATUS" || verb == "VERSION" {
		return func() {}, nil
	}
	t.mu.Lock()
	p := t.programs[path]
	if p == nil {
		p = &program{turns: make(chan struct{}, t.limit), calls: map[*turn]struct{}{}}
		t.programs[path] = p
	}
	t.mu.Unlock()
	select {
	case p.turns <- struct{}{}: // also after the deadline, whose error is then the call's own
	default:
		select {
		case p.turns <- struct{}{}:
		case <-ctx.Done():
			return nil, fmt.Errorf("the program %s was not started: all %d of its processes that may run at once (network.max_plugin_processes) are busy, %s: %w",
				path, t.limit, t.oldest(p), ctx.Err())
		}
	}
	own := &turn{what: verb, since: time.Now()}
	if sandbox := variable(environ, "CNI_CONTAINERID"); sandbox != "" { // GC has none
		own.what += " of sandbox " + sandbox
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p.calls[own] = struct{}{}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(p.calls, own)
		<-p.turns
	}, nil
}

// oldest describes the call of a program that has run for the longest, for people.
func (t *turns) oldest(p *program) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return oldest(p.calls)
}

func oldest(calls map[*turn]struct{}) string {
	var first *turn
	for c := range calls {
		if first == nil || c.since.Before(first.since) {
			first = c
		}
	}
	if first == nil {
		return "and some have just ended"
	}
	return fmt.Sprintf("the oldest for %s with %s", time.Since(first.since).Round(time.Millisecond), first.what)
}

// endPlugins kills the processes that plugins of an earlier daemon have left: the kernel ends a plugin
// with its daemon, but not the plugins that it has started itself, such as IPAM. sandboxes are those
// whose ADD or DEL was not complete. It returns how many it has killed.
func endPlugins(sandboxes []string) (ended int) {
	if len(sandboxes) == 0 {
		return 0
	}
	environs, err := filepath.Glob("/proc/[1-9]*/environ")
	if err != nil {
		return 0
	}
	for _, file := range environs {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil || !isPluginFor(file, sandboxes) {
			continue
		}
		pidfd, err := sysproc.OpenPidfd(pid)
		if err != nil {
			continue // it has ended
		}
		// The pid may have become another process's before it was opened.
		if isPluginFor(file, sandboxes) && sysproc.SignalPidfd(pidfd, syscall.SIGKILL) == nil {
			ended++
		}
		pidfd.Close()
	}
	return ended
}

// isPluginFor reports whether the environment in a file is that of a plugin for one of the sandboxes.
func isPluginFor(environ string, sandboxes []string) bool {
	content, err := os.ReadFile(environ)
	if err != nil || !bytes.Contains(content, []byte("CNI_COMMAND=")) {
		return false
	}
	for variable := range bytes.SplitSeq(content, []byte{0}) {
		if id, found := bytes.CutPrefix(variable, []byte("CNI_CONTAINERID=")); found {
			return slices.Contains(sandboxes, string(id))
		}
	}
	return false
}

// environment removes the variables that are for the daemon alone.
func environment(environ []string) []string {
	var kept []string
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		switch name {
		case "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES":
		default:
			kept = append(kept, e)
		}
	}
	return kept
}

// pluginError is the error that the plugin printed, or else its other output.
func pluginError(err error, stdout, stderr []byte) error {
	plugin := &types.Error{}
	if json.Unmarshal(stdout, plugin) == nil && (plugin.Msg != "" || plugin.Code != 0) {
		return plugin
	}
	return fmt.Errorf("%w%s%s", err, quoteOutput(stdout), quoteOutput(stderr))
}

// quoteOutput returns the output of a plugin for an error, shortened.
func quoteOutput(output []byte) string {
	const most = 2048
	text := strings.TrimSpace(string(output))
	if text == "" {
		return ""
	}
	if len(text) > most {
		text = text[:most] + "..."
	}
	return fmt.Sprintf(": %q", text)
}
