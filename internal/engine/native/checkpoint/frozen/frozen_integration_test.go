//go:build integration

package frozen

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/sys/capability"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/engine/native/checkpoint/mountplan"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
)

// The environment of a container's init, which is this program.
const (
	rootEnv = "BERTH_TEST_FROZEN_ROOT"
	moreEnv = "BERTH_TEST_FROZEN_MORE"
)

// Ways in which an init differs from the request.
const (
	moreMount  = "mount"
	hostFile   = "file of the host"
	memoryFile = "file in memory"
	socket     = "socket"
	device     = "device"
)

func TestMain(m *testing.M) {
	if root := os.Getenv(rootEnv); root != "" {
		if err := beInit(root, os.Getenv(moreEnv)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// beInit makes root the root filesystem, with a procfs, and waits.
func beInit(root, more string) error {
	if more == hostFile {
		if _, err := unix.Open("/", unix.O_DIRECTORY, 0); err != nil {
			return err
		}
	}
	old := filepath.Join(root, "old")
	steps := []func() error{
		func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
		func() error { return unix.Mount(root, root, "", unix.MS_BIND, "") },
		func() error {
			return unix.Mount("proc", filepath.Join(root, "proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
		},
		func() error { return os.Mkdir(old, 0o700) },
		func() error { return unix.PivotRoot(root, old) },
		func() error { return unix.Chdir("/") },
	}
	switch more {
	case moreMount:
		steps = append(steps, func() error { return unix.Mount("tmpfs", "/more", "tmpfs", 0, "") })
	case memoryFile:
		steps = append(steps, func() error { _, err := unix.MemfdCreate("x", 0); return err })
	case socket:
		steps = append(steps, func() error { _, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0); return err })
	case device:
		steps = append(steps, func() error { _, err := unix.Open("/old/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0); return err })
	}
	steps = append(steps, func() error { return unix.Unmount("/old", unix.MNT_DETACH) }, func() error { return unix.Rmdir("/old") })
	for i, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	fmt.Println("ready")
	for {
		_ = unix.Pause() // Go's runtime ends a program whose goroutines all wait
	}
}

// allNamespaces are those that a container has of its own here.
const allNamespaces = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS | syscall.CLONE_NEWNET | syscall.CLONE_NEWCGROUP

// restored starts an init in a cgroup of its own, and describes it by a request that gives what it has.
func restored(t *testing.T, more string, namespaces uintptr) (*Restored, *exec.Cmd) {
	t.Helper()
	root, cgroup := t.TempDir(), newCgroup(t) // before the process, which ends first
	for _, dir := range []string{"proc", "more"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("/proc/self/exe")
	// Without it Go's runtime has a file of its cgroup open.
	cmd.Env = []string{rootEnv + "=" + root, moreEnv + "=" + more, "GODEBUG=containermaxprocs=0"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the init says %q, %v", line, err)
	}
	var caps []string
	for _, c := range capability.ListKnown() {
		caps = append(caps, "CAP_"+strings.ToUpper(c.String()))
	}
	spec := &specs.Spec{
		Root:    &specs.Root{Path: root},
		Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: caps, Inheritable: caps, Ambient: caps}},
		Mounts:  []specs.Mount{{Destination: "/proc", Type: "proc", Options: []string{"nosuid", "nodev", "noexec"}}},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.MountNamespace},
			{Type: specs.PIDNamespace},
			{Type: specs.IPCNamespace},
			{Type: specs.UTSNamespace},
			{Type: specs.NetworkNamespace},
			{Type: specs.CgroupNamespace},
		}},
	}
	for _, id := range mustGroups(t) {
		spec.Process.User.AdditionalGids = append(spec.Process.User.AdditionalGids, uint32(id)) //nolint:gosec // a group
	}
	r := &Restored{
		Init: cmd.Process.Pid, Spec: spec, Rootfs: root, Cgroups: map[string]string{"": cgroup},
		Limits: func(int) uint64 { return math.MaxUint64 },
	}
	join(t, r, cmd.Process.Pid)
	return r, cmd
}

func mustGroups(t *testing.T) []int {
	t.Helper()
	groups, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	return groups
}

// newCgroup makes a cgroup below that of this process, in v2 or in a hierarchy of v1 that has no rules of its own.
func newCgroup(t *testing.T) string {
	t.Helper()
	top := "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(top, "cgroup.controllers")); err != nil {
		top = filepath.Join(top, "pids")
	}
	dir, err := os.MkdirTemp(top, "berth-test-frozen-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for { // the kernel takes a process out when it has been reaped
			if err := unix.Rmdir(dir); !errors.Is(err, unix.EBUSY) {
				if err != nil {
					t.Error(err)
				}
				return
			}
		}
	})
	return dir
}

func join(t *testing.T, r *Restored, pid int) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(r.Cgroups[""], "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
		t.Fatal(err)
	}
}

// stop stops a process, and returns when the kernel has.
func stop(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(cmd.Process.Pid, &status, unix.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("status %#x, %v", status, err)
	}
}

// TestRestoredProcesses: processes that are as the request says pass. Each way in which they may do more, or differ, is refused
// with the process or the mount.
func TestRestoredProcesses(t *testing.T) {
	require.Root(t)
	for name, c := range map[string]struct {
		more       string
		namespaces uintptr
		change     func(t *testing.T, r *Restored)
		words      string
	}{
		"as the request says": {words: ""},
		"capabilities": {change: func(_ *testing.T, r *Restored) {
			r.Spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: []string{"CAP_CHOWN"}}
		}, words: "it has the permitted capabilities"},
		"root for a user": {change: func(_ *testing.T, r *Restored) {
			r.Spec.Process.User.UID, r.Spec.Process.Capabilities = 1000, nil
		}, words: "its user is 0"},
		"a group": {change: func(_ *testing.T, r *Restored) {
			r.Spec.Process.User.GID, r.Spec.Process.User.AdditionalGids, r.Spec.Process.Capabilities = 1000, nil, nil
		}, words: "it has the group 0"},
		"no filter":           {change: func(_ *testing.T, r *Restored) { r.Spec.Linux.Seccomp = &specs.LinuxSeccomp{} }, words: "it has no seccomp filter"},
		"new privileges":      {change: func(_ *testing.T, r *Restored) { r.Spec.Process.NoNewPrivileges = true }, words: "it may get new privileges"},
		"a label":             {change: func(_ *testing.T, r *Restored) { r.Spec.Process.ApparmorProfile = "no-such-profile" }, words: "its security label is"},
		"a limit":             {change: func(_ *testing.T, r *Restored) { r.Limits = func(int) uint64 { return 1 } }, words: "its limit"},
		"a score":             {change: func(_ *testing.T, r *Restored) { score := 999; r.Spec.Process.OOMScoreAdj = &score }, words: "its oom_score_adj is"},
		"the host's network":  {namespaces: allNamespaces &^ syscall.CLONE_NEWNET, words: "its namespace net is not that of the request"},
		"the host's IPC":      {namespaces: allNamespaces &^ syscall.CLONE_NEWIPC, words: "its namespace ipc is not that of the request"},
		"a mount":             {more: moreMount, words: `mount "/more": the request does not have it`},
		"a mount is missing":  {change: func(t *testing.T, r *Restored) { addBind(t, r) }, words: `mount "/more": it is missing`},
		"a root that is open": {change: func(_ *testing.T, r *Restored) { r.Spec.Root.Readonly = true }, words: `mount "/": it is not ro`},
		"another root":        {change: func(t *testing.T, r *Restored) { r.Rootfs = t.TempDir() }, words: `mount "/": it is not `},
		"a file of the host":  {more: hostFile, words: "is of a file on the mount"},
		"a file in memory":    {more: memoryFile, words: "is of a file on the mount"},
		"a socket":            {more: socket, words: "is of a file with mode"},
		"a device":            {more: device, words: "is of device 5:2"},
		"a process of the host": {change: func(t *testing.T, r *Restored) {
			sleep := exec.Command("sleep", "1000")
			if err := sleep.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = sleep.Process.Kill(); _ = sleep.Wait() })
			join(t, r, sleep.Process.Pid)
		}, words: "is not that of the container"},
		"an init in another cgroup": {change: func(t *testing.T, r *Restored) { r.Cgroups[""] = newCgroup(t) }, words: "it is not in the container's cgroup"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.namespaces == 0 {
				c.namespaces = allNamespaces
			}
			r, cmd := restored(t, c.more, c.namespaces)
			stop(t, cmd)
			if c.change != nil {
				c.change(t, r)
			}
			check(t, r, c.words)
		})
	}
	t.Run("it goes on", func(t *testing.T) {
		r, _ := restored(t, "", allNamespaces)
		check(t, r, "it is not stopped")
	})
}

func check(t *testing.T, r *Restored, words string) {
	t.Helper()
	var err error
	if r.Mounts, err = mountplan.Of(r.Spec, r.Spec.Root.Path); err != nil {
		t.Fatal(err)
	}
	err = r.Check()
	if words == "" && err != nil || words != "" && (!errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), words)) {
		t.Errorf("%v, want %q", err, words)
	}
}

// addBind adds a volume to the request.
func addBind(t *testing.T, r *Restored) {
	t.Helper()
	r.Spec.Mounts = append(r.Spec.Mounts, specs.Mount{Destination: "/more", Type: "bind", Source: t.TempDir(), Options: []string{"bind"}})
}
