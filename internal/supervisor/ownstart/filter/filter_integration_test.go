//go:build integration

package filter

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
	"strconv"
	"testing"
	"unsafe"

	mobyseccomp "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/seccomp"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/supervisor/ownstart/codec"
)

func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == Role:
		Capture()
	case len(os.Args) > 1 && os.Args[1] == "load":
		load()
	}
	os.Exit(m.Run())
}

// load loads the profile on stdin as libcontainer's init does, once it is traced.
func load() {
	runtime.LockOSThread()
	encoded, err := io.ReadAll(os.Stdin)
	var profile configs.Seccomp
	if err == nil {
		err = json.Unmarshal(encoded, &profile)
	}
	if err == nil {
		_, err = fmt.Println(unix.Gettid())
	}
	if err == nil {
		_, err = unix.Read(3, make([]byte, 1)) // until it is traced
	}
	if err == nil {
		_, err = seccomp.InitSeccomp(&profile)
	}
	fmt.Fprintln(os.Stderr, "not killed:", err)
	os.Exit(1)
}

// loaded returns the program that libcontainer loads for a profile, as the kernel has it.
func loaded(t *testing.T, profile *configs.Seccomp) []byte {
	t.Helper()
	encoded, err := json.Marshal(profile)
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread() // it is the tracer
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/proc/self/exe", "load")
	cmd.Stdin, cmd.Stderr = bytes.NewReader(encoded), os.Stderr
	traced, start, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer traced.Close()
	defer start.Close()
	cmd.ExtraFiles = []*os.File{traced}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var tid int
	defer func() {
		cmd.Process.Kill()
		// A traced thread that has ended stays until its tracer waits for it, and its process with it.
		for status := unix.WaitStatus(0x7f); tid != cmd.Process.Pid && status.Stopped(); {
			if _, err := unix.Wait4(tid, &status, unix.WALL, nil); err != nil && err != unix.EINTR {
				break
			}
		}
		cmd.Wait()
	}()
	if _, err := fmt.Fscan(out, &tid); err != nil {
		t.Fatal(err)
	}
	const seize = 0x4206
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, seize, uintptr(tid), 0, unix.PTRACE_O_EXITKILL|unix.PTRACE_O_TRACESYSGOOD, 0, 0); errno != 0 {
		t.Fatal(errno)
	}
	if err := unix.PtraceInterrupt(tid); err != nil {
		t.Fatal(err)
	}
	if _, err := start.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	for {
		var status unix.WaitStatus
		if _, err := unix.Wait4(tid, &status, unix.WALL, nil); err != nil || !status.Stopped() {
			t.Fatalf("the thread that loads the profile: %v, status %#x", err, status)
		}
		program := make([]byte, 8*65536)
		n, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SECCOMP_GET_FILTER, uintptr(tid), 0, uintptr(unsafe.Pointer(&program[0])), 0, 0)
		if errno == 0 {
			return program[:8*n]
		}
		if errno != unix.EINVAL { // no filter yet
			t.Fatalf("cannot read the filter back: %v", errno)
		}
		if err := unix.PtraceSyscall(tid, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCaptureAmongSignals: signals interrupt the system call that loads the profile, as Go's own do
// when a thread runs for long. The kernel begins the call again.
func TestCaptureAmongSignals(t *testing.T) {
	require.Root(t)
	encoded, err := json.Marshal(runtimeDefault(t))
	if err != nil {
		t.Fatal(err)
	}
	for round := range 30 {
		var out, complaints bytes.Buffer
		cmd := exec.Command("/proc/self/exe", Role)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(encoded), &out, &complaints
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		if err := interrupt(cmd.Process.Pid, ended); err != nil {
			t.Fatalf("round %d: %v: %s", round, err, complaints.Bytes())
		}
		r := codec.NewReader(out.Bytes())
		if refused, _, program := r.String(), r.Uint(), r.Bytes(); refused != "" || len(program) == 0 || r.Err() != nil {
			t.Fatalf("round %d: a filter of %d bytes, refused: %q, %v", round, len(program), refused, r.Err())
		}
	}
}

// interrupt sends signals to every thread of a process until it has ended, and returns how it has.
func interrupt(pid int, ended <-chan error) error {
	for {
		select {
		case err := <-ended:
			return err
		default:
		}
		threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)) // none when it has ended
		for _, thread := range threads {
			if tid, err := strconv.Atoi(thread.Name()); err == nil {
				_ = unix.Tgkill(pid, tid, unix.SIGURG) // the thread may have ended
			}
		}
	}
}

// runtimeDefault is the profile that most containers have.
func runtimeDefault(t *testing.T) *configs.Seccomp {
	t.Helper()
	spec := &specs.Spec{Linux: &specs.Linux{}, Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}}
	profile, err := mobyseccomp.GetDefaultProfile(spec)
	if err != nil {
		t.Fatal(err)
	}
	converted, err := specconv.SetupSeccomp(profile)
	if err != nil {
		t.Fatal(err)
	}
	return converted
}

// profiles are of every kind that a Cache supports.
func profiles(t *testing.T) map[string]*configs.Seccomp {
	errno := uint(38)
	enosys := uint(unix.ENOSYS)
	many := func(action configs.Action, names ...string) (calls []*configs.Syscall) {
		for _, name := range names {
			calls = append(calls, &configs.Syscall{Name: name, Action: action})
		}
		return calls
	}
	usual := many(configs.Allow, "read", "write", "close", "openat", "execve", "exit", "exit_group", "mmap", "munmap", "mprotect",
		"brk", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "futex", "clone", "clone3", "fstat", "newfstatat", "statx", "lseek",
		"pread64", "pwrite64", "readv", "writev", "pipe2", "dup", "dup2", "dup3", "nanosleep", "getpid", "gettid", "getppid", "getuid",
		"socket", "connect", "accept4", "sendmsg", "recvmsg", "no_such_call_of_any_kernel")
	usual = append(usual,
		&configs.Syscall{Name: "personality", Action: configs.Allow, Args: []*configs.Arg{{Index: 0, Value: 0x20008, Op: configs.EqualTo}}},
		&configs.Syscall{Name: "clone", Action: configs.Allow, Args: []*configs.Arg{{Index: 0, Value: 0x7e020000, Op: configs.MaskEqualTo}}},
		&configs.Syscall{Name: "socket", Action: configs.Allow, Args: []*configs.Arg{
			{Index: 0, Value: 40, Op: configs.NotEqualTo}, {Index: 0, Value: 41, Op: configs.GreaterThan},
		}},
		&configs.Syscall{Name: "clone3", Action: configs.Errno, ErrnoRet: &errno})
	native := []string{"amd64"}
	if runtime.GOARCH == "amd64" {
		native = []string{"amd64", "x86", "x32"}
	}
	return map[string]*configs.Seccomp{
		"default":        runtimeDefault(t),
		"usual":          {DefaultAction: configs.Errno, Syscalls: usual},
		"architectures":  {DefaultAction: configs.Errno, Architectures: native, Syscalls: usual},
		"kills":          {DefaultAction: configs.KillProcess, Syscalls: many(configs.Allow, "read")},
		"enosys already": {DefaultAction: configs.Errno, DefaultErrnoRet: &enosys, Syscalls: usual},
		"allows":         {DefaultAction: configs.Allow, Syscalls: many(configs.Errno, "reboot", "swapon")},
		"logs":           {DefaultAction: configs.Log, Syscalls: many(configs.Trap, "reboot"), Flags: []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagLog}},
		"spec allow":     {DefaultAction: configs.Errno, Syscalls: usual[:8], Flags: []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagSpecAllow, "SECCOMP_FILTER_FLAG_TSYNC"}},
	}
}

// TestFiltersAreWhatLibcontainerLoads compares filters with those that the kernel has after a load by
// libcontainer.
func TestFiltersAreWhatLibcontainerLoads(t *testing.T) {
	require.Root(t)
	var cache Cache
	for name, profile := range profiles(t) {
		t.Run(name, func(t *testing.T) {
			got, err := cache.Get(t.Context(), profile)
			if err != nil {
				t.Fatal(err)
			}
			want := loaded(t, profile)
			// libcontainer lists the architectures in the order of a map.
			if len(profile.Architectures) < 2 && !bytes.Equal(got.Program, want) {
				t.Errorf("%d bytes, the kernel has %d others", len(got.Program), len(want))
			}
			if len(got.Program) != len(want) {
				t.Errorf("%d bytes, the kernel has %d", len(got.Program), len(want))
			}
			wantFlags := uint(0)
			switch name {
			case "logs":
				wantFlags = unix.SECCOMP_FILTER_FLAG_LOG
			case "spec allow", "default": // specconv's own default
				wantFlags = unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW
			}
			if got.Flags != wantFlags {
				t.Errorf("flags %#x, want %#x", got.Flags, wantFlags)
			}
		})
	}
}

func TestRefusedProfilesAreUnsupported(t *testing.T) {
	var cache Cache
	for name, profile := range map[string]*configs.Seccomp{
		"listener":     {DefaultAction: configs.Allow, Syscalls: []*configs.Syscall{{Name: "mkdir", Action: configs.Notify}}},
		"bad action":   {DefaultAction: 77},
		"bad argument": {DefaultAction: configs.Errno, Syscalls: []*configs.Syscall{{Name: "read", Action: configs.Allow, Args: []*configs.Arg{{Index: 0, Op: 99}}}}},
	} {
		for range 2 { // also from the cache
			if _, err := cache.Get(t.Context(), profile); !errors.Is(err, errs.Unsupported) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestOneCaptureServesAll: a caller that gives up does not fail the others, and a known profile takes
// no process.
func TestOneCaptureServesAll(t *testing.T) {
	var cache Cache
	profile := profiles(t)["usual"]
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := cache.Get(ended, profile); err == nil || errors.Is(err, errs.Unsupported) {
		t.Errorf("a caller that gave up: %v", err)
	}
	results := make(chan []byte)
	for range 8 {
		go func() {
			f, err := cache.Get(t.Context(), profile)
			if err != nil {
				t.Error(err)
				results <- nil
				return
			}
			results <- f.Program
		}()
	}
	first := <-results
	for range 7 {
		if other := <-results; len(other) == 0 || &other[0] != &first[0] {
			t.Error("the profile was compiled twice")
		}
	}
	if f, err := cache.Get(ended, profile); err != nil || len(f.Program) == 0 {
		t.Errorf("a known profile: %v", err)
	}
	for i := range 2 * maxProfiles {
		cache.claim([32]byte{1, byte(i)})
	}
	if len(cache.profiles) != maxProfiles {
		t.Errorf("%d profiles are kept", len(cache.profiles))
	}
}
