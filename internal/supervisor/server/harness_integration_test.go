//go:build integration

package server_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/keep"
	"github.com/berthrun/berth/internal/supervisor/server/shim/shimtest"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// patience bounds every wait of a test.
const patience = 30 * time.Second

var binary string

// TestMain uses the binary that `make` has built, or builds one.
func TestMain(m *testing.M) {
	if shimtest.Ran() {
		return
	}
	if bin := os.Getenv("BERTH_BIN"); bin != "" {
		binary = filepath.Join(bin, "berth-supervisor")
		os.Exit(m.Run())
	}
	dir, err := os.MkdirTemp("", "berth-supervisor-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(dir, "berth-supervisor")
	build := exec.Command("go", "build", "-tags", "seccomp netgo osusergo runc_nocriu",
		"-ldflags", "-linkmode external -extldflags -static", "-o", binary, "github.com/berthrun/berth/cmd/berth-supervisor")
	if os.Getenv("BERTH_TEST_RACE") != "" { // the supervisor with the race detector
		build = exec.Command("go", "build", "-race", "-tags", "seccomp runc_nocriu", "-o", binary, "github.com/berthrun/berth/cmd/berth-supervisor")
	}
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "cannot build the supervisor: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// host is one supervisor with its state, rootfs and client.
type host struct {
	t      *testing.T
	name   string
	dir    string // of everything
	state  string
	rootfs string
	client *supervisor.Client

	// handler is what makes the containers, nil for the supervisor. gVisor is true when that is gVisor's shim.
	handler *supervisor.Handler
	gVisor  bool

	mu   sync.Mutex
	cmd  *exec.Cmd
	kept bool
	ids  []string
}

func newHost(t *testing.T) *host {
	t.Helper()
	require.Root(t)
	busybox := require.Binary(t, "busybox")
	dir, err := os.MkdirTemp("", "berth-sv-")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, name: filepath.Base(dir), dir: dir, state: filepath.Join(dir, "state"), rootfs: filepath.Join(dir, "rootfs")}
	t.Cleanup(func() { h.mustRemoveDir() })
	if program := os.Getenv("BERTH_HANDLER"); program != "" {
		h.over(program)
	}
	if err := os.Mkdir(h.state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", h.state, "tmpfs", 0, "mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(h.state, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	for _, sub := range []string{"bin", "proc", "dev", "sys", "tmp", "etc"} {
		if err := os.MkdirAll(filepath.Join(h.rootfs, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(h.rootfs, "bin/busybox"), data, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, applet := range []string{"sh", "cat", "sleep", "echo", "ls", "kill", "stty", "head", "yes", "ulimit", "grep", "true", "false", "seq", "readlink", "tr", "dd", "tail", "usleep"} {
		if err := os.Symlink("busybox", filepath.Join(h.rootfs, "bin", applet)); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// over has an OCI runtime make the containers, or a shim, by the name of its program.
func (h *host) over(program string, args ...string) *host {
	switch name := filepath.Base(program); {
	case name == gvisorShim:
		return h.overGVisor(program)
	case strings.HasPrefix(name, "containerd-shim-"):
		return h.overShim(program)
	}
	h.handler = &supervisor.Handler{Name: "test", Path: program, Args: args, Root: filepath.Join(h.state, "root")}
	return h
}

// overShim has a shim make the containers.
func (h *host) overShim(program string, options ...string) *host {
	h.handler = &supervisor.Handler{
		Name: "test", Protocol: supervisor.ProtocolShim, Path: program, Options: options, Root: filepath.Join(h.state, "root"),
	}
	return h
}

func (h *host) mustRemoveDir() {
	if err := os.RemoveAll(h.dir); err != nil {
		h.t.Error(err)
	}
}

// serve starts a supervisor without keeper.
func (h *host) serve() *host {
	h.t.Helper()
	h.launch("serve", "--state", h.state, "--log-level", "debug")
	h.connect()
	return h
}

// keep starts a keeper, which starts a supervisor.
func (h *host) keep() *host {
	h.t.Helper()
	h.kept = true
	h.launch("keep", "--state", h.state, "--", "--log-level", "debug")
	h.connect()
	return h
}

func (h *host) launch(args ...string) { h.launchCmd(exec.Command(binary, args...)) }

func (h *host) launchCmd(cmd *exec.Cmd) {
	h.t.Helper()
	log, err := os.OpenFile(filepath.Join(h.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		h.t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.cmd = cmd
}

func (h *host) connect() {
	h.t.Helper()
	first := h.client == nil
	if !first {
		return
	}
	client, err := supervisor.Connect(h.ctx(), supervisor.Options{
		Socket: filepath.Join(h.state, "supervisor.sock"),
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		h.t.Fatalf("%v\n%s", err, h.log())
	}
	h.client = client
	h.t.Cleanup(h.end)
	if h.inGVisor() {
		h.makeRoot()
	}
}

// end removes every container, stops the processes, and checks that nothing is left.
func (h *host) end() {
	if h.client == nil {
		return
	}
	defer func() {
		if h.t.Failed() {
			h.t.Logf("log of the supervisor:\n%s", h.log())
		}
	}()
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	if h.kept {
		h.ensure()
	}
	if h.inGVisor() {
		slices.Reverse(h.ids) // the root container goes last
	}
	for _, id := range h.ids {
		if err := h.client.Remove(ctx, id); err != nil {
			h.t.Errorf("remove %s: %v", id, err)
		}
	}
	list, err := h.client.List(ctx)
	if err != nil || len(list) != 0 {
		h.t.Errorf("left: %v %v", list, err)
	}
	if err := h.client.Close(); err != nil {
		h.t.Error(err)
	}
	h.stop()
	all, err := os.ReadFile(filepath.Join(h.dir, "log"))
	if _, race, found := strings.Cut(string(all), "DATA RACE"); err != nil || found {
		h.t.Errorf("the race detector says (%v): %.4000s", err, race)
	}
	h.assertNothingLeft()
	h.assertNoSocketLeft()
	h.awaitNoProcess()
}

// stop ends the current keeper and supervisor.
func (h *host) stop() {
	defer h.cmd.Wait()
	h.cmd.Process.Signal(syscall.SIGTERM)
	if !h.kept {
		return
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		keeper, _ := sysfd.LockHolder(filepath.Join(h.state, keep.LockName))
		serves, _ := sysfd.LockHolder(filepath.Join(h.state, keep.SupervisorLockName))
		if keeper == 0 && serves == 0 {
			return
		}
		if time.Now().After(deadline) {
			h.t.Errorf("keeper %d and supervisor %d do not end", keeper, serves)
			return
		}
		if keeper > 0 {
			syscall.Kill(keeper, syscall.SIGTERM)
		}
	}
}

// assertNothingLeft looks for cgroups and files.
func (h *host) assertNothingLeft() {
	out, _ := exec.Command("find", "/sys/fs/cgroup", "-type", "d", "-path", "*"+h.name+"/*").Output()
	if len(out) > 0 {
		h.t.Errorf("cgroups are left:\n%s", out)
	}
	parents, _ := exec.Command("find", "/sys/fs/cgroup", "-type", "d", "-name", h.name).Output()
	for _, dir := range strings.Fields(string(parents)) {
		syscall.Rmdir(dir)
	}
	for _, sub := range []string{"runc", "supervisor", "handlers", "root", "shims/pods", "shims/containers"} {
		entries, err := os.ReadDir(filepath.Join(h.state, sub))
		if errors.Is(err, os.ErrNotExist) && sub == "root" {
			continue
		}
		if err != nil || len(entries) != 0 {
			h.t.Errorf("left in %s: %v %v", sub, entries, err)
		}
	}
}

// awaitNoProcess waits for the end of all processes that name the state directory: launchers and relays end by themselves.
func (h *host) awaitNoProcess() {
	var left []string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		left = nil
		files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, file := range files {
			if data, err := os.ReadFile(file); err == nil && bytes.Contains(data, []byte(h.state)) {
				left = append(left, file+": "+string(bytes.ReplaceAll(data, []byte{0}, []byte{' '})))
			}
		}
		if len(left) == 0 {
			return
		}
	}
	h.t.Errorf("processes are left: %s", strings.Join(left, "\n"))
}

// assertNoSocketLeft looks for sockets of shims, in the supervisor's directory and in containerd's.
func (h *host) assertNoSocketLeft() {
	for _, id := range append(h.ids, "pod", "other") {
		name := fmt.Sprintf("%x", sha256.Sum256([]byte(filepath.Join(h.state, "shims", "events", "berth", id))))
		if _, err := os.Lstat(filepath.Join("/run/containerd/s", name)); err == nil {
			h.t.Errorf("the socket of the shim of %s is left: %s", id, name)
		}
	}
	entries, err := os.ReadDir(filepath.Join(h.state, "shims"))
	if err != nil {
		h.t.Error(err)
	}
	for _, entry := range entries {
		if !slices.Contains([]string{"pods", "containers"}, entry.Name()) {
			h.t.Errorf("left in shims: %v", entry)
		}
	}
}

func (h *host) log() string {
	data, _ := os.ReadFile(filepath.Join(h.dir, "log"))
	if len(data) > 20000 {
		data = data[len(data)-20000:]
	}
	return string(data)
}

func (h *host) ctx() context.Context {
	// The test's own process has exited when this runs.
	ctx, stop := context.WithTimeout(context.Background(), patience)
	h.t.Cleanup(stop)
	return ctx
}

// pid is the supervisor's.
func (h *host) pid() int {
	h.t.Helper()
	info, err := h.client.Info(h.ctx())
	if err != nil {
		h.t.Fatal(err)
	}
	return info.Pid
}

// crash kills the supervisor and starts another, unless a keeper does.
func (h *host) crash() {
	h.t.Helper()
	pid := h.pid()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		h.t.Fatal(err)
	}
	if h.kept {
		return
	}
	h.cmd.Wait()
	h.launch("serve", "--state", h.state, "--log-level", "debug")
}

// status returns what the keeper reports about itself.
func (h *host) status() keep.Status {
	h.t.Helper()
	data, err := os.ReadFile(filepath.Join(h.state, keep.StatusName))
	var s keep.Status
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

type option func(*specs.Spec, *supervisor.CreateRequest)

func withTTY(s *specs.Spec, _ *supervisor.CreateRequest) { s.Process.Terminal = true }

func withStdin(_ *specs.Spec, r *supervisor.CreateRequest) { r.Stdin = true }

func withStdinOnce(_ *specs.Spec, r *supervisor.CreateRequest) { r.Stdin, r.StdinOnce = true, true }

func withUser(uid uint32) option {
	return func(s *specs.Spec, _ *supervisor.CreateRequest) { s.Process.User = specs.User{UID: uid, GID: uid} }
}

func withoutPIDNamespace(s *specs.Spec, _ *supervisor.CreateRequest) {
	s.Linux.Namespaces = []specs.LinuxNamespace{{Type: "mount"}}
}

// spec writes a bundle that runs args in busybox, without a shell.
func (h *host) bundle(id string, args []string, options ...option) *supervisor.CreateRequest {
	h.t.Helper()
	caps := []string{"CAP_KILL", "CAP_SETUID", "CAP_SETGID", "CAP_CHOWN", "CAP_DAC_OVERRIDE"}
	spec := &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: h.rootfs},
		Process: &specs.Process{
			Args: args,
			Env:  []string{"PATH=/bin"},
			Cwd:  "/",
			Capabilities: &specs.LinuxCapabilities{
				Bounding: caps, Effective: caps, Permitted: caps,
			},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"newinstance", "ptmxmode=0666"}},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs"},
		},
		Linux: &specs.Linux{
			CgroupsPath: "/" + h.name + "/" + id,
			Namespaces:  []specs.LinuxNamespace{{Type: "mount"}, {Type: "pid"}, {Type: "ipc"}, {Type: "uts"}},
			Resources:   &specs.LinuxResources{},
		},
	}
	logs := filepath.Join(h.dir, "logs")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		h.t.Fatal(err)
	}
	req := &supervisor.CreateRequest{
		ID:      id,
		Bundle:  filepath.Join(h.dir, "bundles", id),
		LogDir:  logs,
		LogPath: id + ".log",
		Handler: h.handler,
	}
	for _, o := range options {
		o(spec, req)
	}
	if h.inGVisor() {
		intoSandbox(id, spec)
	}
	data, err := json.Marshal(spec)
	if err != nil {
		h.t.Fatal(err)
	}
	if err := os.MkdirAll(req.Bundle, 0o700); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(req.Bundle, "config.json"), data, 0o600); err != nil {
		h.t.Fatal(err)
	}
	h.mu.Lock()
	h.ids = append(h.ids, id)
	h.mu.Unlock()
	return req
}

// create creates a container that runs a shell script.
func (h *host) create(id, script string, options ...option) *supervisor.Container {
	h.t.Helper()
	c, err := h.client.Create(h.ctx(), h.bundle(id, []string{"/bin/sh", "-c", script}, options...))
	if err != nil {
		h.t.Fatalf("create %s: %v\n%s", id, err, h.log())
	}
	return c
}

// run creates and starts.
func (h *host) run(id, script string, options ...option) int {
	h.t.Helper()
	h.create(id, script, options...)
	pid, err := h.client.Start(h.ctx(), id)
	if err != nil {
		h.t.Fatalf("start %s: %v\n%s", id, err, h.log())
	}
	return pid
}

// exit waits for a container's exit.
func (h *host) exit(id string) supervisor.Exit {
	h.t.Helper()
	ctx, stop := context.WithTimeout(h.t.Context(), patience)
	defer stop()
	exits, err := h.client.Exits(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	for exit := range exits {
		if exit.ID == id {
			return exit
		}
	}
	h.t.Fatalf("no exit of %s came", id)
	return supervisor.Exit{}
}

func (h *host) wantExit(id string, code int32) supervisor.Exit {
	h.t.Helper()
	exit := h.exit(id)
	if exit.Code != code || exit.Unknown {
		h.t.Errorf("exit of %s: %+v, want code %d", id, exit, code)
	}
	return exit
}

// lines returns the log lines of one stream, without timestamps.
func (h *host) lines(id, stream string) []string {
	h.t.Helper()
	data, err := os.ReadFile(filepath.Join(h.dir, "logs", id+".log"))
	if err != nil {
		h.t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(data)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		if len(fields) != 4 {
			h.t.Fatalf("log of %s has line %q", id, line)
		}
		if fields[1] == stream {
			lines = append(lines, fields[3])
		}
	}
	return lines
}

// waitLine waits until the log has a line.
func (h *host) waitLine(id, want string) {
	h.t.Helper()
	h.eventually("line "+want+" in the log of "+id, func() bool {
		data, err := os.ReadFile(filepath.Join(h.dir, "logs", id+".log"))
		return err == nil && strings.Contains(string(data), want)
	})
}

// eventually polls for a condition without an event.
func (h *host) eventually(what string, is func() bool) {
	h.t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			h.t.Fatalf("it did not come to be: %s\n%s", what, h.log())
		}
	}
}

// exec runs a script and returns its output and code.
func (h *host) exec(id, script string) (string, string, int32, error) {
	h.t.Helper()
	var stdout, stderr bytes.Buffer
	code, err := h.client.Exec(h.ctx(), execRequest(id, script), supervisor.Streams{Stdout: &stdout, Stderr: &stderr})
	return stdout.String(), stderr.String(), code, err
}

func execRequest(id, script string) *supervisor.ExecRequest {
	return &supervisor.ExecRequest{
		ContainerID: id,
		Process:     &specs.Process{Args: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/bin"}, Cwd: "/"},
	}
}

func wantKind(t *testing.T, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("error %v, want kind %v", err, kind)
	}
}
