//go:build integration

package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// freshHost runs berth as a new user does: in a host namespace with an empty directory and no
// daemon.
type freshHost struct {
	*harness.Berth
	t *testing.T
}

func newFreshHost(t *testing.T) *freshHost {
	t.Helper()
	return &freshHost{harness.New(t, harness.Options{}), t}
}

// result is that of one command.
type result struct {
	out  string
	code int
}

// run runs a program in the instance's host namespace to its end.
func (n *freshHost) run(program string, args ...string) result {
	n.t.Helper()
	return n.end(n.start(program, args...))
}

// running is a started program.
type running struct {
	*exec.Cmd
	out *output
}

// output is what a program has printed so far. It can be read while the program prints.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func (n *freshHost) start(program string, args ...string) *running {
	n.t.Helper()
	c := &running{n.InHost(program, args...), new(output)}
	c.Stdout, c.Stderr = c.out, c.out
	if err := c.Start(); err != nil {
		n.t.Fatal(err)
	}
	return c
}

// end waits for a command, which must end soon.
func (n *freshHost) end(c *running) result {
	n.t.Helper()
	late := time.AfterFunc(40*time.Second, func() { _ = c.Process.Kill() })
	defer late.Stop()
	err := c.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		n.t.Fatal(err)
	}
	return result{c.out.String(), c.ProcessState.ExitCode()}
}

func (n *freshHost) berth() string { return filepath.Join(n.Bin, "berth") }

// places are the flags of a daemon of this instance.
func (n *freshHost) places(more ...string) []string {
	return append([]string{"serve", "--network", "builtin", "--log-format", "text", "--listen", "unix://" + n.Socket, "--root", n.Root, "--state", n.State}, more...)
}

// refused requires that a command fails with these words, and leaves nothing.
func (n *freshHost) refused(t *testing.T, r result, words ...string) {
	t.Helper()
	if r.code != 1 {
		t.Errorf("exit code %d, want 1", r.code)
	}
	for _, word := range words {
		if !strings.Contains(r.out, word) {
			t.Errorf("it does not say %q:\n%s", word, r.out)
		}
	}
	if strings.Contains(r.out, "panic") || strings.Contains(r.out, "goroutine ") {
		t.Errorf("it panicked:\n%s", r.out)
	}
	n.nothing(t)
}

func (n *freshHost) nothing(t *testing.T) {
	t.Helper()
	var left harness.Leftovers
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if left = harness.FindLeftovers(n.Dir); left.Empty() {
			return
		}
	}
	t.Errorf("left behind:\n%s", left)
	left.RemoveByForce()
}

func TestWrongFlagsAreNamed(t *testing.T) {
	n := newFreshHost(t)
	for name, c := range map[string]struct {
		args  []string
		words []string
	}{
		"unknown command":          {[]string{"srve"}, []string{`unknown command "srve"`, "serve"}},
		"unknown flag":             {[]string{"serve", "--roots", "/x"}, []string{"unknown flag: --roots"}},
		"argument too many":        {[]string{"serve", "now"}, []string{`"now"`}},
		"no value":                 {[]string{"serve", "--root"}, []string{"--root"}},
		"several values":           {n.places("--network", "bridge", "--log-level", "loud"), []string{"network.mode", "cni, builtin, kubenet", "log.level", "debug, info, warn, error"}},
		"a TCP address":            {n.places("--listen", "tcp://127.0.0.1:1"), []string{"listen", "unix:///ABSOLUTE/PATH"}},
		"relative directories":     {n.places("--root", "root", "--state", "state"), []string{"root", "state", "absolute"}},
		"root is state":            {n.places("--root", n.State), []string{"must differ from root"}},
		"long socket":              {n.places("--listen", "unix:///"+strings.Repeat("s", 107)), []string{"107 bytes"}},
		"long state":               {n.places("--state", n.Dir+"/"+strings.Repeat("s", 80)), []string{"state", "80 bytes"}},
		"no such file":             {n.places("--config", n.Dir+"/no.toml"), []string{"no.toml", "not found", "berth config default"}},
		"directory as file":        {n.places("--config", n.Dir), []string{n.Dir, "directory"}},
		"check of two files":       {[]string{"config", "check", "a", "b"}, []string{"at most 1 arg"}},
		"client without a daemon":  {[]string{"pod", "ls", "--endpoint", "unix://" + n.Socket}, []string{n.Socket, "no such socket", "berth serve"}},
		"client of no socket":      {[]string{"pod", "ls", "--endpoint", "unix://" + n.Dir}, []string{n.Dir}},
		"client of another scheme": {[]string{"pod", "ls", "--endpoint", "tcp://127.0.0.1:1"}, []string{"unix:///"}},
	} {
		t.Run(name, func(t *testing.T) {
			n.refused(t, n.run(n.berth(), c.args...), c.words...)
			for _, dir := range []string{n.Root, n.State} {
				if _, err := os.Stat(dir); err == nil {
					t.Errorf("%s was made", dir)
				}
			}
		})
	}
}

func TestBadConfigurationNamesEveryFaultWithItsLine(t *testing.T) {
	n := newFreshHost(t)
	file := filepath.Join(n.Dir, "bad.toml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`root = 5
state = "relative"
listn = "unix:///x"
[network]
mode = "bridge"
mtu = "big"
subnets = ["10.1.2.3/16"]
[jobs]
stage_timeout = "soon"
[nets]
x = 1
`)
	words := []string{
		file + `:1: root: 5: want a string`,
		file + `:2: state: "relative": want an absolute path`,
		file + `:3: listn: no such key; did you mean listen?`,
		file + `:5: network.mode: "bridge": want one of cni, builtin, kubenet`,
		file + `:6: network.mtu: big: want a whole number`,
		file + `:7: network.subnets: subnet 10.1.2.3/16 has host bits set; the subnet is 10.1.0.0/16`,
		file + `:9: jobs.stage_timeout: "soon"`,
		file + `:10: nets: no such key`,
	}
	n.refused(t, n.run(n.berth(), "config", "check", file), words...)
	n.refused(t, n.run(n.berth(), "serve", "--config", file), words...)
	for name, c := range map[string]struct{ text, words string }{
		"syntax":       {"root = '/a'\nstate == 3\n", ":2: "},
		"no end":       {"[network\n", ":1: "},
		"twice":        {"root = '/a'\nroot = '/b'\n", "root"},
		"not UTF-8":    {"root = '/\xff'\n", ":1: "},
		"binary":       {"\x00\x01\x02", ":1: "},
		"a table":      {"root = { a = 1 }\n", "root"},
		"table of all": {"[[network]]\nmode = 'cni'\n", "network"},
	} {
		t.Run(name, func(t *testing.T) {
			write(c.text)
			n.refused(t, n.run(n.berth(), "config", "check", file), c.words)
		})
	}
	if r := n.run(n.berth(), "config", "default"); r.code != 0 || !strings.Contains(r.out, "[network]") {
		t.Errorf("config default: %d\n%s", r.code, r.out)
	} else {
		write(r.out)
	}
	if r := n.run(n.berth(), "config", "check", file); r.code != 0 {
		t.Errorf("its own sample has faults: %s", r.out)
	}
}

func TestServeNeedsRoot(t *testing.T) {
	n := newFreshHost(t)
	bin := filepath.Join(n.Dir, "bin")
	copyFile(t, n.berth(), bin, "berth")
	for _, dir := range []string{n.Dir, bin} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	as := []string{"--reuid=65534", "--regid=65534", "--clear-groups", filepath.Join(bin, "berth")}
	n.refused(t, n.run("setpriv", append(as, n.places()...)...), "must run as root")
	// The error must report that the client has no permission, and not that the socket does not
	// exist.
	n.StartDaemon()
	r := n.run("setpriv", append(as, "pod", "ls", "--endpoint", "unix://"+n.Socket)...)
	if r.code != 1 || !strings.Contains(r.out, "for root and its group") {
		t.Errorf("exit code %d:\n%s", r.code, r.out)
	}
}

func copyFile(t *testing.T, from, dir, name string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestServeWithoutASupervisor(t *testing.T) {
	n := newFreshHost(t)
	copyFile(t, n.berth(), filepath.Join(n.Dir, "bin"), "berth")
	alone := filepath.Join(n.Dir, "bin", "berth")
	n.refused(t, n.run("env", append([]string{"PATH=/nowhere", alone}, n.places()...)...), "berth-supervisor", "runtime.supervisor")
	for name, make := range map[string]func(path string) error{
		"is not there":      func(string) error { return nil },
		"is a directory":    func(path string) error { return os.Mkdir(path, 0o755) },
		"is no program":     func(path string) error { return os.WriteFile(path, []byte("text"), 0o755) },
		"may not be run":    func(path string) error { return os.WriteFile(path, nil, 0o644) },
		"ends at once":      func(path string) error { return os.WriteFile(path, []byte("#!/bin/sh\nexit 3\n"), 0o755) },
		"is something else": func(path string) error { return os.Symlink("/bin/true", path) },
	} {
		t.Run(name, func(t *testing.T) {
			supervisor := filepath.Join(t.TempDir(), "supervisor")
			if err := make(supervisor); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(n.Dir, "berth.toml")
			if err := os.WriteFile(file, []byte("[runtime]\nsupervisor = '"+supervisor+"'\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			n.refused(t, n.run(alone, n.places("--config", file)...), "supervisor")
		})
	}
}

func TestServeTwice(t *testing.T) {
	n := newFreshHost(t)
	n.StartDaemon()
	n.ImportBusybox()
	pod := n.RunPod("good", "sleep 100000")
	for name, c := range map[string]struct {
		args  []string
		words []string
	}{
		"the same":       {n.places(), []string{"in use", fmt.Sprintf("process %d", n.DaemonPid())}},
		"another socket": {n.places("--listen", "unix://"+n.Dir+"/other.sock"), []string{"in use", "process"}},
		"another state":  {n.places("--listen", "unix://"+n.Dir+"/other.sock", "--state", n.Dir+"/other"), []string{"image store", fmt.Sprintf("process %d", n.DaemonPid()), n.Root}},
		"another root":   {n.places("--listen", "unix://"+n.Dir+"/other.sock", "--root", n.Dir+"/other"), []string{"in use", "process"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := n.run(n.berth(), c.args...)
			if r.code != 1 {
				t.Errorf("exit code %d, want 1", r.code)
			}
			for _, word := range c.words {
				if !strings.Contains(r.out, word) {
					t.Errorf("it does not say %q:\n%s", word, r.out)
				}
			}
			if got := n.ExecOut(pod.Container, "echo here"); got != "here" {
				t.Errorf("exec answered %q", got)
			}
		})
	}
	n.Await("what the others made to go", func() bool { return harness.FindLeftovers(filepath.Join(n.Dir, "other")).Empty() })
}

func TestSocketPlaces(t *testing.T) {
	n := newFreshHost(t)
	file := filepath.Join(n.Dir, "file")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.refused(t, n.run(n.berth(), n.places("--listen", "unix://"+file)...), file, "no socket")
	n.refused(t, n.run(n.berth(), n.places("--listen", "unix://"+file+"/s.sock")...), file)
	if data, err := os.ReadFile(file); err != nil || string(data) != "mine" {
		t.Errorf("the file is %q, %v", data, err)
	}
	// berth creates a missing directory, for root only.
	missing := filepath.Join(n.Dir, "a", "b", "s.sock")
	c := n.start(n.berth(), n.places("--listen", "unix://"+missing)...)
	n.Await("the socket", func() bool { _, err := os.Stat(missing); return err == nil })
	for path, mode := range map[string]os.FileMode{filepath.Dir(missing): 0o700, missing: 0o660} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v; want %o", path, info.Mode(), err, mode)
		}
	}
	_ = c.Process.Signal(syscall.SIGTERM)
	if r := n.end(c); r.code != 0 {
		t.Errorf("exit code %d:\n%s", r.code, r.out)
	}
	n.nothing(t)
}

// Ctrl-C at any moment of a start ends it in order, with nothing left.
func TestInterruptedStarts(t *testing.T) {
	// The caller may ignore the signal, as a shell does for a command in the background. The started processes would
	// then ignore it, too, until they have a handler.
	interrupt := make(chan os.Signal, 1)
	signal.Notify(interrupt, syscall.SIGINT)
	t.Cleanup(func() { signal.Stop(interrupt) })
	n := newFreshHost(t)
	var moments []time.Duration
	for range 20 {
		moments = append(moments, time.Duration(rand.Int64N(int64(400*time.Millisecond))))
	}
	for _, moment := range moments {
		c := n.start(n.berth(), n.places()...)
		time.Sleep(moment) // as long as a person needs
		_ = c.Process.Signal(syscall.SIGINT)
		r := n.end(c)
		// Before the program has installed its handler, the signal ends it.
		if r.code != 0 && !(r.code == -1 && r.out == "") {
			t.Errorf("after %s: exit code %d:\n%s", moment, r.code, r.out)
		}
	}
	n.nothing(t)
}

// If the state directory is not a tmpfs, berth mounts one on it while it is in use, and finds it
// again. If it is one, berth mounts nothing.
func TestStateDirectory(t *testing.T) {
	t.Run("on disk", func(t *testing.T) {
		b := harness.Start(t, harness.Options{})
		b.RunPod("good", "sleep 100000")
		for range 2 {
			b.StopDaemon()
			if n := mountsAt(t, b.State); n != 1 {
				t.Errorf("%d mounts on the state directory, want 1", n)
			}
			b.StartDaemon()
		}
		b.RemoveAllPods()
		b.StopDaemon()
		if n := mountsAt(t, b.State); n != 0 {
			t.Errorf("%d mounts on the state directory, want none", n)
		}
		b.StartDaemon()
	})
	t.Run("on tmpfs", func(t *testing.T) {
		n := newFreshHost(t)
		state, err := os.MkdirTemp("/dev/shm", "berth-test-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(state)
		c := n.start(n.berth(), n.places("--state", state)...)
		n.Await("the daemon", func() bool {
			_, err := n.Runtime.Version(n.Ctx(), &runtimeapi.VersionRequest{})
			return err == nil
		})
		if n := mountsAt(t, state); n != 0 {
			t.Errorf("%d mounts on the state directory, want none", n)
		}
		_ = c.Process.Signal(syscall.SIGTERM)
		if r := n.end(c); r.code != 0 {
			t.Errorf("exit code %d:\n%s", r.code, r.out)
		}
		var left harness.Leftovers
		n.Await("the keeper to end", func() bool { left = harness.FindLeftovers(state); return left.Empty() })
	})
}

func mountsAt(t *testing.T, dir string) (count int) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == dir {
			count++
		}
	}
	return count
}

func TestKilledAndStartedAgain(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	pod := b.RunPod("good", `i=0; while :; do i=$((i+1)); echo line $i; sleep 0.01; done`)
	for i := range 10 {
		// Also while the previous daemon still starts.
		if i%2 == 0 {
			b.KillDaemon()
			b.LaunchDaemon()
			time.Sleep(time.Duration(rand.Int64N(int64(150 * time.Millisecond))))
		}
		b.KillDaemon()
		b.StartDaemon()
		if got := b.ExecOut(pod.Container, "echo here"); got != "here" {
			t.Errorf("exec answered %q", got)
		}
	}
	b.StopDaemon()
	b.StartDaemon()
	lines, err := harness.LogLines(pod.LogFile)
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range lines {
		if line != fmt.Sprintf("line %d", i+1) {
			t.Fatalf("line %d of the log is %q", i+1, line)
		}
	}
}

func TestReadOnlyRoot(t *testing.T) {
	root := smallDisk(t, "64m")
	b := harness.New(t, harness.Options{Args: []string{"--root", root}})
	b.Root = root
	n := &freshHost{b, t}
	readonly := func(on bool) {
		t.Helper()
		flags := uintptr(syscall.MS_REMOUNT)
		if on {
			flags |= syscall.MS_RDONLY
		}
		// Files that are open for writing must be closed first.
		n.Await("the remount", func() bool { return syscall.Mount("", root, "", flags, "") == nil })
	}
	readonly(true)
	n.refused(t, n.run(n.berth(), n.places("--root", root)...), root, "read-only file system")
	readonly(false)
	b.StartDaemon()
	b.ImportBusybox()
	pod := b.RunPod("good", "sleep 100000")
	b.StopDaemon()
	b.StartDaemon()
	if got := b.ExecOut(pod.Container, "echo here"); got != "here" {
		t.Errorf("exec answered %q", got)
	}
}

// A request that arrives while the daemon stops gets an answer. The daemon ends in time although a
// request waits for long.
func TestStopDoesNotWaitForRequests(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	pod := b.RunPod("good", "trap '' TERM; while :; do sleep 1; done")
	execs := make(chan error, 1)
	go func() {
		_, err := b.Runtime.ExecSync(b.Ctx(), &runtimeapi.ExecSyncRequest{ContainerId: pod.Container, Cmd: []string{"sleep", "600"}})
		execs <- err
	}()
	b.Await("the exec", func() bool { return strings.Contains(b.ExecOut(pod.Container, "ps"), "sleep 600") })
	stops := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, err := b.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: pod.Container, Timeout: 10})
		stops <- err
	}()
	b.Await("the stop", func() bool { // the rest of the request never arrives
		jobs, _, err := b.CLI("jobs", "-o", "json")
		return err == nil && strings.Contains(jobs, pod.Container)
	})
	began := time.Now()
	b.StopDaemon()
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the daemon took %s to stop", took)
	}
	if err := <-execs; err != nil { // the container may have been faster
		checkRefusal(t, err, codes.Unavailable, nil)
	}
	if err := <-stops; err != nil {
		checkRefusal(t, err, codes.Unavailable, nil)
	}
	b.StartDaemon()
	// The next daemon completes what was requested.
	b.AwaitExit(pod.Container)
}

// TestStopWithPodsIsShort: a daemon that has pods does not wait for its keeper, which stays with
// them. So an upgrade without a service manager is as short.
func TestStopWithPodsIsShort(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	pod := b.RunPod("stays", "exec sleep 1000")
	shortest := time.Hour
	for range 3 {
		began := time.Now()
		b.StopDaemon()
		shortest = min(shortest, time.Since(began))
		b.StartDaemon()
	}
	if shortest > require.Patience(4*time.Second) {
		t.Errorf("it took %v", shortest)
	}
	b.RemovePod(pod.Sandbox)
}
