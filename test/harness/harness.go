// Package harness runs a real berth for tests, with its own directories, its own host network
// namespace and the binaries of `make build`. A test that leaves something behind fails.
package harness

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/docker/dockertest"
	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/internal/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Options of one berth.
type Options struct {
	// Args are added to `berth serve`.
	Args []string
	// Config is the text of a configuration file, "" for none.
	Config string
	// NoImages leaves the store empty.
	NoImages bool
	// CDIDirs hold CDI specs, none for the engine's own directories.
	CDIDirs []string
	// Docker starts a Docker engine for the instance, nil for the engine that BERTH_ENGINE names.
	Docker *dockertest.Options
	// BinDir holds the binaries; "" is BERTH_BIN.
	BinDir string
}

// stateName is the instance's state directory.
const stateName = "state"

// Berth is one running instance.
type Berth struct {
	T   testing.TB
	Bin string
	// Dir holds everything of this instance; Root, State and Logs are in it.
	Dir, Root, State, Logs string
	Socket                 string
	// NetNS is the name of the network namespace that stands for the host's; "" for an installed
	// berth, which uses the real one.
	NetNS string

	Runtime runtimeapi.RuntimeServiceClient
	Images  runtimeapi.ImageServiceClient

	// GVisor is true when gVisor's shim runs the containers of the instance: see BERTH_HANDLER.
	GVisor bool
	// Docker is the Docker engine below an instance with engine docker, else nil.
	Docker *dockertest.Daemon
	// facts are what Docker can do, nil until they are needed.
	facts *translate.Facts

	args    []string
	boots   int // how often Reboot was called
	logFile *os.File
	daemon  *exec.Cmd
	// ready is closed when the daemon has reported that all of it is open, ended when it has ended.
	ready, ended chan struct{}
	conn         *grpc.ClientConn
}

// BinDir returns where the binaries under test are.
func BinDir(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("BERTH_BIN")
	if dir == "" {
		t.Fatal("BERTH_BIN is not set: run `make integration`, or `make build` and set it to the bin directory")
	}
	return dir
}

// Start starts an instance. When the test ends, it stops the instance and checks for leftovers.
func Start(t testing.TB, opts Options) *Berth {
	t.Helper()
	require.Root(t)
	b := New(t, opts)
	b.StartDaemon()
	if !opts.NoImages {
		b.ImportBusybox()
	}
	return b
}

// New is Start without starting the daemon.
func New(t testing.TB, opts Options) *Berth {
	t.Helper()
	bin := opts.BinDir
	if bin == "" {
		bin = BinDir(t)
	}
	dir, err := os.MkdirTemp("", "berth-test-")
	if err != nil {
		t.Fatal(err)
	}
	must(t, os.Chmod(dir, 0o711)) // user namespaces pass through
	b := &Berth{
		T: t, Bin: bin, Dir: dir,
		Root: filepath.Join(dir, "root"), State: filepath.Join(dir, stateName), Logs: filepath.Join(dir, "logs"),
		Socket: filepath.Join(dir, "berth.sock"),
		NetNS:  filepath.Base(dir),
	}
	b.args = append([]string{
		"serve", "--network", "builtin", "--listen", "unix://" + b.Socket, "--root", b.Root, "--state", b.State,
		"--log-level", "debug", "--log-format", "text",
	}, opts.Args...)
	handler := defaultHandler(t, opts.Config, dir)
	b.GVisor = handler != "" && isGVisor()
	if os.Getenv("BERTH_BEFORE") == "" { // an earlier berth does not have the flag, and reads the host's own file
		b.args = append(b.args, "--routes-file", filepath.Join(dir, "routes"))
	}
	if config := opts.Config + handler; config != "" {
		file := filepath.Join(dir, "berth.toml")
		must(t, os.WriteFile(file, []byte(config), 0o600))
		b.args = append(b.args, "--config", file)
	}
	must(t, os.MkdirAll(b.Logs, 0o755))
	b.logFile, err = os.OpenFile(filepath.Join(dir, "berth.log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	must(t, err)
	makeHost(t, b.NetNS)
	b.args = append(b.args, engineArgs(t, b, opts)...)
	t.Cleanup(b.cleanup)
	b.connect()
	return b
}

// connect makes the clients. The daemon need not listen yet.
func (b *Berth) connect() {
	b.T.Helper()
	var err error
	b.conn, err = grpc.NewClient("unix://"+b.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)),
		// A daemon serves a moment after its start. By default gRPC tries again after a second.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: 20 * time.Second,
		}))
	must(b.T, err)
	b.Runtime, b.Images = runtimeapi.NewRuntimeServiceClient(b.conn), runtimeapi.NewImageServiceClient(b.conn)
}

// StartDaemon starts `berth serve` in the instance's host namespace and returns
// when it has reported that it is ready: then the image store and the network are open.
func (b *Berth) StartDaemon() {
	b.T.Helper()
	b.LaunchDaemon()
	b.AwaitDaemon()
	select {
	case <-b.ready:
	case <-b.ended:
		b.T.Fatalf("the daemon ended before it was ready\n%s", b.LogTail())
	case <-time.After(require.Patience(time.Minute)):
		b.T.Fatalf("the daemon does not become ready\n%s", b.LogTail())
	}
}

// LaunchDaemon starts `berth serve` and does not wait for it.
func (b *Berth) LaunchDaemon() {
	b.T.Helper()
	argv := append([]string{"--net=/run/netns/" + b.NetNS, filepath.Join(b.Bin, "berth")}, b.args...)
	daemon := exec.Command("nsenter", argv...)
	daemon.Stdout, daemon.Stderr = b.logFile, b.logFile
	notices := b.listenForNotices()
	daemon.Env = append(os.Environ(), "NOTIFY_SOCKET="+notices.LocalAddr().String())
	must(b.T, daemon.Start())
	b.daemon, b.ready, b.ended = daemon, make(chan struct{}), make(chan struct{})
	go awaitReady(notices, b.ready)
	go func(ended chan struct{}) {
		_ = daemon.Wait()
		close(ended)
		_ = notices.Close()
	}(b.ended)
}

// listenForNotices stands for systemd, to which the daemon reports that it is ready.
func (b *Berth) listenForNotices() *net.UnixConn {
	b.T.Helper()
	path := filepath.Join(b.Dir, "notify")
	must(b.T, os.RemoveAll(path))
	notices, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must(b.T, err)
	return notices
}

// awaitReady closes ready when a notice says so, and returns when there are no more notices.
func awaitReady(notices *net.UnixConn, ready chan<- struct{}) {
	buf := make([]byte, 4096)
	for seen := false; ; {
		n, err := notices.Read(buf)
		if err != nil {
			return
		}
		if !seen && slices.Contains(strings.Split(string(buf[:n]), "\n"), "READY=1") {
			seen = true
			close(ready)
		}
	}
}

// AwaitDaemon returns when the daemon answers. If the daemon ends instead, the test fails with its
// log.
func (b *Berth) AwaitDaemon() {
	b.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), require.Patience(time.Minute))
	defer cancel()
	ended := b.ended
	go func() {
		select {
		case <-ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	_, err := b.Runtime.Version(ctx, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true))
	for status.Code(err) == codes.Unavailable && ctx.Err() == nil {
		// The request used the connection to the previous daemon.
		_, err = b.Runtime.Version(ctx, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true))
	}
	if err != nil {
		b.T.Fatalf("the daemon does not answer: %v\n%s", err, b.LogTail())
	}
}

// DaemonPid is the daemon's pid (nsenter has executed it).
func (b *Berth) DaemonPid() int { return b.daemon.Process.Pid }

// StopDaemon ends the daemon by SIGTERM; pods keep running.
func (b *Berth) StopDaemon() { b.endDaemon(syscall.SIGTERM) }

// KillDaemon ends the daemon by SIGKILL and waits until it is gone.
func (b *Berth) KillDaemon() { b.endDaemon(syscall.SIGKILL) }

func (b *Berth) endDaemon(sig syscall.Signal) {
	b.T.Helper()
	_ = b.daemon.Process.Signal(sig) // it may have exited already
	select {
	case <-b.ended:
	case <-time.After(require.Patience(time.Minute)):
		b.T.Fatalf("the daemon did not end on %v\n%s", sig, b.LogTail())
	}
}

// Running reports whether the daemon runs.
func (b *Berth) Running() bool {
	select {
	case <-b.ended:
		return false
	default:
		return b.daemon != nil
	}
}

// LogTail is the end of the daemon's log, for messages.
func (b *Berth) LogTail() string {
	if b.logFile == nil {
		return Journal(DaemonUnit)
	}
	data, err := os.ReadFile(b.logFile.Name())
	if err != nil {
		return err.Error()
	}
	const tail = 8 << 10
	if len(data) > tail {
		data = data[len(data)-tail:]
	}
	return string(data)
}

// CLI runs `berth ARGS...` against the instance and returns what it printed.
func (b *Berth) CLI(args ...string) (stdout, stderr string, err error) {
	cmd := exec.Command(filepath.Join(b.Bin, "berth"), args...)
	cmd.Env = append(os.Environ(), "BERTH_ENDPOINT=unix://"+b.Socket)
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err = cmd.Run()
	return out.String(), errOut.String(), err
}

// MustCLI is CLI that requires success, and returns stdout.
func (b *Berth) MustCLI(args ...string) string {
	b.T.Helper()
	out, errOut, err := b.CLI(args...)
	if err != nil {
		b.T.Fatalf("berth %s: %v\n%s%s", strings.Join(args, " "), err, out, errOut)
	}
	return out
}

// cleanup removes every pod, stops the daemon and fails the test if anything is left.
func (b *Berth) cleanup() {
	var supervisorLog string
	if b.daemon != nil {
		if !b.Running() {
			b.StartDaemon()
		}
		b.RemoveAllPods()
		supervisorLog = tail(filepath.Join(b.State, "supervisor.log")) // it is removed with the state directory
		b.StopDaemon()
		b.awaitNone(func() Leftovers { return FindLeftovers(b.Dir) })
		if b.GVisor {
			b.clearGVisor()
		}
	}
	_ = b.conn.Close()
	removeHost(b.T, b.NetNS)
	if b.T.Failed() {
		b.T.Logf("end of the daemon's log:\n%s", b.LogTail())
		b.T.Logf("supervisor's log:\n%s", supervisorLog)
		b.keepLogs()
	}
	_ = b.logFile.Close()
	must(b.T, os.RemoveAll(b.Dir))
}

// awaitNone waits until only files are left. Otherwise it fails the test and removes by force what
// it can.
func (b *Berth) awaitNone(find func() Leftovers) {
	b.T.Helper()
	deadline := time.Now().Add(require.Patience(20 * time.Second))
	for {
		left := find()
		if left.Empty() {
			return
		}
		if time.Now().After(deadline) {
			b.T.Errorf("left behind:\n%s", left)
			left.RemoveByForce()
			return
		}
		time.Sleep(50 * time.Millisecond) // the kernel removes links and cgroups asynchronously; they have no common event
	}
}

// keepLogs copies the logs of a failed test to the directory that BERTH_TEST_OUT
// names, if it does.
func (b *Berth) keepLogs() {
	out := os.Getenv("BERTH_TEST_OUT")
	if out == "" {
		return
	}
	out = filepath.Join(out, filepath.Base(b.Dir))
	must(b.T, os.MkdirAll(out, 0o755))
	files := map[string]string{
		"berth.log": b.logFile.Name(), "supervisor.log": filepath.Join(b.State, "supervisor.log"), "kubelet.log": filepath.Join(b.Dir, "kubelet.log"),
	}
	if b.Docker != nil {
		files["docker.log"] = b.Docker.Log
	}
	for name, file := range files {
		if data, err := os.ReadFile(file); err == nil {
			must(b.T, os.WriteFile(filepath.Join(out, name), data, 0o600))
		}
	}
	b.T.Logf("logs are in %s", out)
}

func tail(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-8<<10):])
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// makeHost creates a network namespace that stands for the host, with a default route into a second
// namespace that stands for the rest of the network.
func makeHost(t testing.TB, name string) {
	t.Helper()
	for _, args := range [][]string{
		{"netns", "add", name},
		{"netns", "add", name + "-world"},
		{"-n", name, "link", "set", "lo", "up"},
		{"-n", name + "-world", "link", "set", "lo", "up"},
		{"-n", name, "link", "add", "up0", "type", "veth", "peer", "name", "down0", "netns", name + "-world"},
		{"-n", name, "addr", "add", "192.0.2.10/24", "dev", "up0"},
		{"-n", name + "-world", "addr", "add", "192.0.2.1/24", "dev", "down0"},
		{"-n", name, "link", "set", "up0", "up"},
		{"-n", name + "-world", "link", "set", "down0", "up"},
		{"-n", name, "route", "add", "default", "via", "192.0.2.1"},
	} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
}

func removeHost(t testing.TB, name string) {
	for _, ns := range []string{name, name + "-world"} {
		if out, err := exec.Command("ip", "netns", "del", ns).CombinedOutput(); err != nil {
			t.Errorf("ip netns del %s: %v: %s", ns, err, out)
		}
	}
}

// InHost is a command that runs in the instance's host network namespace.
func (b *Berth) InHost(name string, args ...string) *exec.Cmd {
	if b.NetNS == "" {
		return exec.Command(name, args...)
	}
	return exec.Command("nsenter", append([]string{"--net=/run/netns/" + b.NetNS, name}, args...)...)
}

// InWorld is a command that runs in the namespace beyond the host's uplink.
func (b *Berth) InWorld(name string, args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{fmt.Sprintf("--net=/run/netns/%s-world", b.NetNS), name}, args...)...)
}
