//go:build integration

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	mobyseccomp "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/supervisor/ownstart/filter"
	"github.com/berthrun/berth/internal/supervisor/ownstart/fork"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime/execstate"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// execWay starts execs in one of the two ways.
type execWay func(t *testing.T, e *Exec) (pid int, err error)

// ways are the two, in a container that runs.
func (b *bench) ways() map[string]execWay {
	executor := b.r.starter.(*execStarter)
	executor.own.parts = sync.OnceValues(func() (*execParts, error) { return staticParts(b.dir) })
	state := func(t *testing.T, id string) *execstate.State {
		t.Helper()
		s, err := b.r.states.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	return map[string]execWay{
		"libcontainer": func(t *testing.T, e *Exec) (int, error) {
			b.r.host.FitProcess(e.Process)
			return executor.starter.exec(t.Context(), e, state(t, e.ContainerID))
		},
		"own": func(t *testing.T, e *Exec) (int, error) {
			b.r.host.FitProcess(e.Process)
			s := state(t, e.ContainerID)
			process, err := executor.own.process(t.Context(), e, s)
			if err != nil {
				t.Fatalf("berth's own child does not take it: %v", err)
			}
			return executor.own.exec(t.Context(), e, s, process)
		},
	}
}

// staticParts are those with a program of children that is linked statically, as children have no other
// file. A test's program is not.
func staticParts(dir string) (*execParts, error) {
	binary := filepath.Join(dir, "berth-init")
	build := exec.Command("go", "build", "-tags", "netgo osusergo", "-ldflags", "-linkmode external -extldflags -static",
		"-o", binary, "github.com/berthrun/berth/cmd/berth-init")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cannot build the program of children: %w: %s", err, out)
	}
	exe, err := os.Open(binary)
	if err != nil {
		return nil, err
	}
	return openExecParts(func() (*fork.Program, error) { return fork.New(exe, dir), nil })
}

// output runs a process and returns its output and its wait status.
func output(t *testing.T, start execWay, e *Exec) (string, syscall.WaitStatus) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	e.StdIO.Stdout, e.StdIO.Stderr = w, w
	pid, err := start(t, e)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(out), waitPid(t, pid)
}

func waitPid(t *testing.T, pid int) (status syscall.WaitStatus) {
	t.Helper()
	for {
		_, err := syscall.Wait4(pid, &status, 0, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return status
	}
}

// ordinary makes a spec as those of a kubelet's containers.
func ordinary(t *testing.T, b *bench) func(*specs.Spec) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(b.dir, "rootfs/etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "rootfs/etc/passwd"), []byte("root:x:0:0::/root:/bin/sh\nsome:x:1000:1000::/home/some:/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return func(s *specs.Spec) {
		set := []string{"CAP_CHOWN", "CAP_KILL", "CAP_NET_BIND_SERVICE", "CAP_SETUID", "CAP_SETGID", "CAP_SYS_CHROOT"}
		s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: set, Effective: set, Permitted: set}
		s.Process.OOMScoreAdj = new(500)
		s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NPROC", Soft: 1000, Hard: 2000}}
		profile, err := mobyseccomp.GetDefaultProfile(s)
		if err != nil {
			t.Fatal(err)
		}
		s.Linux.Seccomp = profile
		s.Mounts = append(s.Mounts,
			specs.Mount{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
			specs.Mount{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"newinstance", "ptmxmode=0666", "mode=0620"}})
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: "ipc"}, specs.LinuxNamespace{Type: "uts"},
			specs.LinuxNamespace{Type: "network"}, specs.LinuxNamespace{Type: "cgroup"})
	}
}

// show prints what a process has.
const show = `
cat /proc/self/status /proc/self/limits /proc/self/cgroup /proc/self/oom_score_adj
for ns in ipc mnt net pid uts cgroup user; do readlink /proc/self/ns/$ns; done
readlink /proc/self/root /proc/self/cwd
cat /proc/self/attr/current /proc/self/sessionid /proc/self/timerslack_ns 2>&1
cat /proc/self/personality; umask; id; pwd; env; ls /proc/self/fd; cut -d' ' -f7,8,18,19,40,41 /proc/self/stat
grep ' _ses.like:' /proc/keys | sed 's/Q--- *[0-9]*//'; echo "$0 $@"
`

// volatile are parts of what show prints that differ between two processes in any case.
var volatile = regexp.MustCompile(`(?m)^(Pid|PPid|Ngid|Tgid|NSpid|NStgid|NSpgid|NSsid|Vm.*|Rss.*|Hugetlb.*|.*ctxt_switches|Threads|SigQ|Shd.*):.*\n|berth-exec-[a-z]*`)

// TestExecIsLikeLibcontainers compares processes that the two ways start.
func TestExecIsLikeLibcontainers(t *testing.T) {
	b := newBench(t)
	_, s := b.createWith("like", ordinary(t, b))
	if err := b.r.Start(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	ways := b.ways()
	cannotChangeNull(t, "like", ways["own"])
	set := []string{"CAP_KILL", "CAP_NET_BIND_SERVICE"}
	for name, process := range map[string]specs.Process{
		"of the container": {},
		"user": {
			User: specs.User{UID: 1000, GID: 1001, AdditionalGids: []uint32{7, 8}}, Cwd: "/proc",
			Env: []string{"PATH=/bin", "A=1", "A=2", "HOME="},
		},
		"no new privileges": {NoNewPrivileges: true, Env: []string{"PATH=/bin", "HOME=/here"}},
		"capabilities": {
			User:         specs.User{UID: 1000, GID: 1000},
			Capabilities: &specs.LinuxCapabilities{Bounding: set, Effective: set, Permitted: set, Inheritable: set, Ambient: set[:1]},
		},
		"privileges after all": {
			User: specs.User{UID: 5}, NoNewPrivileges: true,
			Capabilities: &specs.LinuxCapabilities{Bounding: set, Inheritable: set, Ambient: set},
		},
		"limits": {Rlimits: []specs.POSIXRlimit{
			{Type: "RLIMIT_NOFILE", Soft: 99, Hard: 100}, {Type: "RLIMIT_CORE", Soft: 0, Hard: 1}, {Type: "RLIMIT_NPROC", Soft: 1 << 20, Hard: 1 << 21},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got := make(map[string]string)
			for way, start := range ways {
				p := process
				p.Args = []string{"/bin/busybox", "sh", "-c", "export PATH=/bin; busybox --install -s /bin 2>/dev/null;" + show, "zero", "one"}
				if p.Cwd == "" {
					p.Cwd = "/"
				}
				e := &Exec{ContainerID: "like", Process: &p}
				e.Group = ExecGroup(b.cgroups["like"], strings.ReplaceAll(way, " ", ""))
				out, status := output(t, start, e)
				if status.ExitStatus() != 0 {
					t.Errorf("%s: status %v of %s", way, status, out)
				}
				got[way] = volatile.ReplaceAllString(out, "")
				if err := e.Group.Remove(t.Context()); err != nil {
					t.Error(err)
				}
			}
			want := strings.Split(got["libcontainer"], "\n")
			own := strings.Split(got["own"], "\n")
			for i := range max(len(want), len(own)) {
				if i >= len(want) || i >= len(own) || want[i] != own[i] {
					t.Errorf("line %d differs\nlibcontainer: %q\nown:          %q", i, want[min(i, len(want)-1)], own[min(i, len(own)-1)])
				}
			}
			if !strings.Contains(got["own"], "Seccomp:\t2") || !strings.Contains(got["own"], "Seccomp_filters:\t1") {
				t.Errorf("there is no filter in %s", got["own"])
			}
		})
	}
}

// cannotChangeNull checks that a process without input, such as a probe, cannot change the host's /dev/null as root of the container.
func cannotChangeNull(t *testing.T, id string, way execWay) {
	t.Helper()
	// The mode is the one that it has.
	script := "busybox chmod 666 /proc/self/fd/0 2>&1; busybox cat && echo x > /dev/stdin && echo ended"
	out, _ := output(t, way, &Exec{ContainerID: id, ID: "null", Process: &specs.Process{
		Args: []string{"/bin/busybox", "sh", "-c", script}, Env: []string{"PATH=/bin"}, Cwd: "/",
	}})
	if !strings.Contains(out, "Read-only file system") || !strings.HasSuffix(out, "ended\n") {
		t.Errorf("%q", out)
	}
}

// TestExecErrorsAreLikeLibcontainers compares the kinds of errors, and that nothing is left.
func TestExecErrorsAreLikeLibcontainers(t *testing.T) {
	b := newBench(t)
	_, s := b.createWith("errors", ordinary(t, b))
	if err := b.r.Start(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(b.dir, "rootfs")
	for name, mode := range map[string]os.FileMode{"plain": 0o644, "secret": 0o700, "broken": 0o755} {
		if err := os.WriteFile(filepath.Join(root, name), []byte{0}, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(root, "closed"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/proc/self/fd/3", filepath.Join(root, "leak")); err != nil {
		t.Fatal(err)
	}
	user := specs.User{UID: 1000, GID: 1000}
	for name, test := range map[string]struct {
		p    specs.Process
		text string
	}{
		"no such file":      {specs.Process{Args: []string{"/nope"}}, "no such file or directory"},
		"not in PATH":       {specs.Process{Args: []string{"nope"}, Env: []string{"PATH=/bin:/sbin"}}, "executable file not found in $PATH"},
		"no PATH":           {specs.Process{Args: []string{"busybox"}}, "executable file not found in $PATH"},
		"not executable":    {specs.Process{Args: []string{"/plain"}}, "permission denied"},
		"not for this user": {specs.Process{Args: []string{"/secret"}, User: user}, "permission denied"},
		"a directory":       {specs.Process{Args: []string{"/proc"}}, "is a directory"},
		"no directory":      {specs.Process{Args: []string{"/bin/busybox", "true"}, Cwd: "/nope"}, "no such file or directory"},
		"a file as cwd":     {specs.Process{Args: []string{"/bin/busybox", "true"}, Cwd: "/plain"}, "not a directory"},
		"cwd is closed":     {specs.Process{Args: []string{"/bin/busybox", "true"}, Cwd: "/closed/x", User: user}, "no such file or directory"},
	} {
		for way, start := range b.ways() {
			p := test.p
			if p.Cwd == "" {
				p.Cwd = "/"
			}
			before := children(t)
			pid, err := start(t, &Exec{ContainerID: "errors", Process: &p})
			if err == nil {
				t.Errorf("%s, %s: it runs: %v", name, way, waitPid(t, pid))
				continue
			}
			if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("%s, %s: %v", name, way, err)
			}
			if after := children(t); way == "own" && !slices.Equal(before, after) {
				t.Errorf("%s: children %v, %v before", name, after, before)
			}
		}
	}
	// The kernel refuses this one at the execve.
	own := b.ways()["own"]
	if _, err := own(t, &Exec{ContainerID: "errors", Process: &specs.Process{Args: []string{"/broken"}, Cwd: "/"}}); !errors.Is(err, errs.Invalid) || !errors.Is(err, syscall.ENOEXEC) {
		t.Errorf("a broken program: %v", err)
	}
	// A descriptor of berth's is no way out.
	for fd := range 16 {
		for _, p := range []specs.Process{
			{Args: []string{"/bin/busybox", "true"}, Cwd: fmt.Sprint("/proc/self/fd/", fd)},
			{Args: []string{fmt.Sprint("/proc/self/fd/", fd)}, Cwd: "/"},
		} {
			if pid, err := own(t, &Exec{ContainerID: "errors", Process: &p}); err == nil {
				t.Errorf("%q in %s runs: %v", p.Args, p.Cwd, waitPid(t, pid))
			}
		}
	}
}

// TestExecUnderANarrowFilter: the filter of a container need not allow what the child does for itself.
// libcontainer needs these calls.
func TestExecUnderANarrowFilter(t *testing.T) {
	for _, noNewPrivileges := range []bool{false, true} {
		t.Run(fmt.Sprint("no new privileges ", noNewPrivileges), func(t *testing.T) {
			b := newBench(t)
			_, s := b.createWith("narrow", func(s *specs.Spec) {
				s.Process.NoNewPrivileges = noNewPrivileges
				s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{{
					Action: specs.ActAllow, Names: []string{
						"read", "write", "close", "openat", "execve", "exit", "exit_group", "mmap", "munmap", "mprotect", "brk",
						"rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "futex", "nanosleep", "clock_nanosleep", "sigaltstack", "madvise",
						"chdir", "prctl", "capget", "capset", "setuid", "setgid", "setgroups", "getcwd", "fstat", "newfstatat", "faccessat2",
						"fcntl", "getdents64", "getuid", "getpid", "gettid", "getppid", "tgkill", "seccomp", "set_tid_address", "set_robust_list",
						"arch_prctl", "rseq", "prlimit64", "epoll_pwait", "epoll_ctl", "eventfd2", "epoll_create1", "readlinkat", "statx", "lseek",
						"openat2", "statfs", "fstatfs", "getrandom", "dup3", "readlink", "sched_yield", "kill",
					},
				}}}
			})
			if err := b.r.Start(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			own := b.ways()["own"]
			state, err := b.r.states.Get("narrow")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := state.Filter(t.Context(), &filter.Cache{}); err != nil {
				t.Fatal(err)
			}
			pid, err := own(t, &Exec{ContainerID: "narrow", Process: &specs.Process{Args: []string{"/bin/busybox", "true"}, Cwd: "/", NoNewPrivileges: noNewPrivileges}})
			if err != nil {
				t.Fatal(err)
			}
			if status := waitPid(t, pid); status != 0 {
				t.Errorf("it ended with %v", status)
			}
			if _, err := own(t, &Exec{ContainerID: "narrow", Process: &specs.Process{Args: []string{"/nope"}, Cwd: "/", NoNewPrivileges: noNewPrivileges}}); !errors.Is(err, errs.Invalid) {
				t.Errorf("a missing program: %v", err)
			}
		})
	}
}

// TestExecHasATerminal resizes it and looks at it from inside.
func TestExecHasATerminal(t *testing.T) {
	b := newBench(t)
	_, s := b.createWith("terminal", ordinary(t, b))
	if err := b.r.Start(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	for way, start := range b.ways() {
		receiver, sender, err := sysfd.FDSocket()
		if err != nil {
			t.Fatal(err)
		}
		pid, err := start(t, &Exec{
			ContainerID: "terminal",
			Process: &specs.Process{
				Args: []string{"/bin/busybox", "sh", "-c", "busybox tty; busybox stty size; busybox ls -ln /dev/pts/0 | busybox cut -c1-24; busybox ls /proc/self/fd; echo : > /dev/tty"}, Cwd: "/",
				Env: []string{"PATH=/bin"}, Terminal: true, ConsoleSize: &specs.Box{Width: 81, Height: 33}, User: specs.User{UID: 1000},
			},
			StdIO: StdIO{Console: sender},
		})
		sender.Close()
		if err != nil {
			t.Fatal(way, err)
		}
		fd, err := sysfd.PeekFD(t.Context(), receiver)
		if err != nil {
			t.Fatal(way, err)
		}
		receiver.Close()
		master := os.NewFile(uintptr(fd), "master")
		out, _ := io.ReadAll(master) // EIO at its end
		master.Close()
		if status := waitPid(t, pid); status != 0 {
			t.Errorf("%s: %v", way, status)
		}
		want := "/dev/pts/0\n33 81\ncrw--w----    1 1000\n0\n1\n2\n3\n:\n"
		if got := strings.ReplaceAll(string(out), "\r", ""); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") {
			t.Errorf("%s: %q", way, got)
		}
	}
}

// TestExecEndsWithItsContext: nothing is left of an exec whose deadline expires at any moment.
func TestExecEndsWithItsContext(t *testing.T) {
	b := newBench(t)
	_, s := b.createWith("late", ordinary(t, b))
	if err := b.r.Start(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	b.ways()
	before := children(t)
	for i := range 60 {
		ctx, stop := context.WithTimeout(t.Context(), time.Duration(i)*150*time.Microsecond)
		group := ExecGroup(b.cgroups["late"], strconv.Itoa(i))
		pid, err := b.r.Exec(ctx, &Exec{ContainerID: "late", Process: &specs.Process{Args: []string{"/bin/busybox", "sleep", "1000"}, Cwd: "/"}, Group: group})
		stop()
		if err == nil {
			if err := group.Kill(t.Context()); err != nil {
				t.Error(err)
			}
			waitPid(t, pid)
		} else if !errors.Is(err, errs.Deadline) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %d: %v", i, err)
		}
		if pids, err := group.Pids(); err == nil && len(pids) > 0 {
			t.Errorf("after %d: processes %v", i, pids)
		}
		if err := group.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if after := children(t); !slices.Equal(before, after) {
		t.Errorf("children %v, %v before", after, before)
	}
}

// TestExecSendsItsPidfd and is in its own cgroup by then.
func TestExecSendsItsPidfd(t *testing.T) {
	b := newBench(t)
	_, s := b.createWith("pidfd", ordinary(t, b))
	if err := b.r.Start(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	receiver, sender, err := sysfd.FDSocket()
	if err != nil {
		t.Fatal(err)
	}
	defer receiver.Close()
	group := ExecGroup(b.cgroups["pidfd"], "one")
	pid, err := b.ways()["own"](t, &Exec{ContainerID: "pidfd", Process: &specs.Process{Args: []string{"/bin/busybox", "sleep", "1000"}, Cwd: "/"}, Group: group, Pidfd: sender})
	sender.Close()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := sysfd.PeekFD(t.Context(), receiver)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.PidfdSendSignal(fd, 0, nil, 0); err != nil {
		t.Error(err)
	}
	unix.Close(fd)
	if pids, err := group.Pids(); err != nil || !slices.Equal(pids, []int{pid}) {
		t.Errorf("the cgroup has %v, %v, want %d", pids, err, pid)
	}
	own, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(own)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		controller, _, _ := strings.Cut(strings.TrimPrefix(fields[1], "name="), ",")
		_, has := b.cgroups["pidfd"][controller]
		if _, named := b.cgroups["pidfd"]["name="+controller]; (has || named) && !strings.HasPrefix(fields[2], "/"+b.name+"/pidfd") {
			t.Errorf("it is outside of the container's cgroup: %s", line)
		}
	}
	if err := group.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	waitPid(t, pid)
	if err := group.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// children returns the pids of this process's children.
func children(t *testing.T) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		for _, field := range strings.Fields(string(data)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// TestExecsInParallelLeaveNothing: each has its whole output and its code, and no descriptor, thread or
// goroutine of this process is left.
func TestExecsInParallelLeaveNothing(t *testing.T) {
	b := newBench(t)
	_, s := b.createWith("many", ordinary(t, b))
	if err := b.r.Start(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	own := b.ways()["own"]
	one := func(i int) {
		out, status := output(t, own, &Exec{ContainerID: "many", Process: &specs.Process{
			Args: []string{"/bin/busybox", "sh", "-c", "busybox seq 2000; exit $0", strconv.Itoa(i % 100)}, Cwd: "/",
		}})
		if strings.Count(out, "\n") != 2000 || !strings.HasSuffix(out, "\n2000\n") || status.ExitStatus() != i%100 {
			t.Errorf("exec %d: status %v, %d bytes", i, status, len(out))
		}
	}
	one(0)
	before, _, err := sysfd.CountFDs()
	if err != nil {
		t.Fatal(err)
	}
	routines := runtime.NumGoroutine()
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for i := range 12 {
				one(worker*12 + i)
			}
		})
	}
	all.Wait()
	for deadline := time.Now().Add(require.Patience(10 * time.Second)); ; time.Sleep(time.Millisecond) {
		after, _, err := sysfd.CountFDs()
		if err != nil {
			t.Fatal(err)
		}
		if after <= before && runtime.NumGoroutine() <= routines {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors and %d goroutines, %d and %d before", after, runtime.NumGoroutine(), before, routines)
		}
	}
	if left := children(t); len(left) != 1 { // the container's init
		t.Errorf("children %v are left", left)
	}
}

// TestAStartCopiesNoDescriptorsOfOthers: what the supervisor holds of other containers makes no start
// longer. The kernel keeps the size of the table that a process was started with.
func TestAStartCopiesNoDescriptorsOfOthers(t *testing.T) {
	const others, most = 2000, 256
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for range others {
		fd, err := unix.FcntlInt(null.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
	}
	b := newBench(t)
	_, s := b.createWith("few", ordinary(t, b))
	if err := b.r.Start(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	out, status := output(t, b.ways()["own"], &Exec{ContainerID: "few", Process: &specs.Process{
		Args: []string{"/bin/busybox", "awk", "/FDSize/ {print $2}", "/proc/self/status"}, Cwd: "/",
	}})
	size, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil || status.ExitStatus() != 0 {
		t.Fatalf("%q, status %v: %v", out, status, err)
	}
	if size > most {
		t.Errorf("beside %d descriptors of others, a process is started with a table of %d", others, size)
	}
}
