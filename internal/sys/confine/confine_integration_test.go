//go:build integration

package confine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysmount"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// onThread runs fn on a thread that ends with it.
func onThread(fn func()) {
	done := make(chan struct{})
	sysns.GoOnThread(func() {
		defer close(done)
		fn()
	})
	<-done
}

// TestDeniedCalls: the calls that would lead out of the namespaces of a program fail, and others do not.
func TestDeniedCalls(t *testing.T) {
	require.Root(t)
	onThread(func() {
		if done, err := denyCalls(); err != nil || !done {
			t.Errorf("the kernel cannot deny calls: %v", err)
			return
		}
		for _, domain := range []int{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK, unix.AF_VSOCK, unix.AF_ALG} {
			if fd, err := unix.Socket(domain, unix.SOCK_STREAM, 0); !errors.Is(err, unix.EPERM) {
				t.Errorf("a socket of domain %d: %d, %v", domain, fd, err)
			}
		}
		for _, call := range denied() {
			if _, _, errno := unix.Syscall6(uintptr(call), 0, 0, 0, 0, 0, 0); errno != unix.EPERM {
				t.Errorf("call %d: %v", call, errno)
			}
		}
		// Where they are not denied, these fail with EINVAL, except prctl.
		const users, both = unix.CLONE_NEWUSER, unix.CLONE_NEWUSER | unix.CLONE_FS
		for _, c := range []struct {
			name            string
			call, arg, more uintptr
			want            unix.Errno
		}{
			{"clone with a user namespace", unix.SYS_CLONE, both, 0, unix.EPERM},
			{"unshare of a user namespace", unix.SYS_UNSHARE, users, 0, unix.EPERM},
			{"clone3", unix.SYS_CLONE3, 0, 0, unix.ENOSYS},
			{"prctl with another signal", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM), unix.EPERM},
			{"prctl with no signal", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, 0, unix.EPERM},
			{"prctl that is invalid", unix.SYS_PRCTL, 1 << 30, 0, unix.EINVAL},
			{"unshare of nothing", unix.SYS_UNSHARE, 0, 0, 0},
		} {
			if _, _, errno := unix.Syscall(c.call, c.arg, c.more, 0); errno != c.want {
				t.Errorf("%s: error %d (%v), want %d (%v)", c.name, errno, errno, c.want, c.want)
			}
		}
		if runtime.GOARCH == "amd64" {
			if _, _, errno := unix.Syscall(0x40000000|unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0); errno != unix.EPERM {
				t.Errorf("a socket by the x32 ABI: %v", errno)
			}
		}
		if _, err := os.ReadFile("/proc/self/stat"); err != nil {
			t.Errorf("other calls fail, too: %v", err)
		}
	})
}

// TestRoot: a root shows its binds and its overlay, all of them as they should be mounted, and nothing else. The host sees none of
// these mounts.
func TestRoot(t *testing.T) {
	require.Root(t)
	dir := t.TempDir()
	for _, name := range []string{"upper", "layers/a", "layers/b"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, filepath.Base(name)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mknod(filepath.Join(dir, "layers/b/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatal(err)
	}
	view := View{
		Binds:       []Bind{{Source: filepath.Join(dir, "upper"), Name: "upper"}},
		Overlay:     sysmount.Overlay{LowerRoot: filepath.Join(dir, "layers"), Lower: []string{"a", "b"}},
		OverlayName: "lower",
	}
	onThread(func() { // in a host of its own: other tests mount meanwhile
		if err := errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")); err != nil {
			t.Error(err)
			return
		}
		before, err := os.ReadFile("/proc/thread-self/mountinfo")
		if err != nil {
			t.Error(err)
			return
		}
		host, err := os.Open("/proc/thread-self/ns/mnt")
		if err != nil {
			t.Error(err)
			return
		}
		defer host.Close()
		onThread(func() { enterView(t, host, view) })
		after, err := os.ReadFile("/proc/thread-self/mountinfo")
		if err != nil || string(after) != string(before) {
			t.Errorf("the host's mounts have changed from\n%s\nto\n%s\n%v", before, after, err)
		}
	})
}

// enterView makes the root of a view on the calling thread, as a program of the host has it, and checks it.
func enterView(t *testing.T, host *os.File, view View) {
	if err := errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(int(host.Fd()), unix.CLONE_NEWNS), unix.Unshare(unix.CLONE_NEWNS)); err != nil {
		t.Error(err)
		return
	}
	trees, err := view.open()
	if err != nil {
		t.Error(err)
		return
	}
	defer trees.close()
	if err := errors.Join(enterEmptyRoot([]string{"upper", "lower"}), trees.attach()); err != nil {
		t.Error(err)
		return
	}
	checkRoot(t)
	now, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", os.Getpid()))
	if err == nil {
		t.Errorf("the host's procfs is there: %s", now)
	}
}

func checkRoot(t *testing.T) {
	for path, want := range map[string]string{"/": "lower upper", "/upper": "upper", "/lower": "a b null", "/..": "lower upper"} {
		entries, err := os.ReadDir(path)
		var names []string
		for _, entry := range entries {
			names = append(names, entry.Name())
		}
		if got := strings.Join(names, " "); err != nil || got != want {
			t.Errorf("%s has %q, want %q: %v", path, got, want, err)
		}
	}
	for path, want := range map[string]error{"/upper/new": nil, "/lower/new": unix.EROFS, "/new": unix.EROFS} {
		if err := unix.Mkdir(path, 0o755); !errors.Is(err, want) {
			t.Errorf("a directory %s: %v, want %v", path, err, want)
		}
	}
	for path, want := range map[string]int64{"/": unix.ST_RDONLY, "/upper": 0, "/lower": unix.ST_RDONLY} {
		var st unix.Statfs_t
		const all = unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC
		if err := unix.Statfs(path, &st); err != nil || st.Flags&(all|unix.ST_RDONLY) != all|want {
			t.Errorf("%s has mount flags %x, %v", path, st.Flags, err)
		}
	}
	if fd, err := unix.Open("/lower/null", unix.O_RDONLY|unix.O_CLOEXEC, 0); !errors.Is(err, unix.EACCES) {
		t.Errorf("the device of a lower directory opens as %d, %v", fd, err)
	}
}

// TestStartFails: a start that fails leaves the starter as it was.
func TestStartFails(t *testing.T) {
	require.Root(t)
	s, err := New([]string{"upper"}, unix.CAP_CHOWN)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	notProgram := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(notProgram, []byte("x"), 0o755); err != nil { //nolint:gosec // the kernel looks at the mode first
		t.Fatal(err)
	}
	view := View{Binds: []Bind{{Source: filepath.Dir(notProgram), Name: "upper"}}}
	for name, c := range map[string]struct {
		program string
		view    View
		want    error
	}{
		"no program":      {"/does/not/exist", view, unix.ENOENT},
		"not a program":   {notProgram, view, unix.ENOEXEC},
		"no directory":    {"/bin/true", View{Binds: []Bind{{Source: "/does/not/exist", Name: "upper"}}}, unix.ENOENT},
		"no place for it": {"/bin/true", View{Binds: []Bind{{Source: "/", Name: "other"}}}, unix.ENOENT},
		"again":           {notProgram, view, unix.ENOEXEC},
	} {
		cmd := exec.CommandContext(t.Context(), c.program)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		if err := s.Start(t.Context(), cmd, c.view); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}
