//go:build integration

package server_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
)

// wantStarter checks what has created a container.
func (h *host) wantStarter(c *supervisor.Container, starter, reason string) {
	h.t.Helper()
	if c.Starter != starter || (c.StarterReason == "") != (reason == "") || !strings.Contains(c.StarterReason, reason) {
		h.t.Errorf("%s was created by %q because of %q, want %q, %q", c.ID, c.Starter, c.StarterReason, starter, reason)
	}
}

// TestStarterIsShown: the answer to a create, the list, which a successor reads from the record, and the
// counts of Info show what created a container.
func TestStarterIsShown(t *testing.T) {
	h := newHost(t).serve()
	h.wantStarter(h.create("own", "sleep 1000"), "own", "")
	h.wantStarter(h.create("lib", "sleep 1000", withPersonality), "libcontainer", "linux.personality")
	h.wantStarter(h.create("off", "sleep 1000", withoutOwnInit), "libcontainer", "own_init")
	h.crash()
	list, err := h.client.List(h.ctx())
	if err != nil || len(list) != 3 {
		t.Fatalf("list %v, %v", list, err)
	}
	for i := range list {
		if want := map[string]string{"own": "own", "lib": "libcontainer", "off": "libcontainer"}[list[i].ID]; list[i].Starter != want {
			t.Errorf("after a crash %s was created by %q", list[i].ID, list[i].Starter)
		}
	}
	info, err := h.client.Info(h.ctx())
	if err != nil || info.Starters["own"] != 1 || info.Starters["libcontainer"] != 2 || len(info.StarterReasons) != 2 {
		t.Errorf("counted %v %v, %v", info.Starters, info.StarterReasons, err)
	}
}

// TestFirstThreadIsMains: libcontainer enters the mount namespace of a container on a thread that then ends. The first thread of a
// process cannot end: /proc/self would show the mounts of the container from then on, and they would stay when it is removed.
// So main keeps that thread. It runs every second.
func TestFirstThreadIsMains(t *testing.T) {
	h := newHost(t).serve()
	h.create("c", "sleep 1000", withoutOwnInit)
	first := fmt.Sprintf("/proc/%d/task/%[1]d/", h.pid())
	runs := func() (n int) {
		status, err := os.ReadFile(first + "status")
		if err != nil {
			t.Fatal(err)
		}
		_, after, _ := strings.Cut(string(status), "\nvoluntary_ctxt_switches:")
		if _, err := fmt.Sscan(after, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := runs()
	h.eventually("main to run on the first thread", func() bool { return runs() >= before+2 })
	ours, err1 := os.Readlink("/proc/self/ns/mnt")
	supervisors, err2 := os.Readlink(first + "ns/mnt")
	if err := errors.Join(err1, err2); err != nil || supervisors != ours {
		t.Errorf("the first thread is in mount namespace %s, want %s: %v", supervisors, ours, err)
	}
}

// TestSmallMemory: a container with little memory has room for berth's init, and for the process of an exec.
func TestSmallMemory(t *testing.T) {
	h := newHost(t).serve()
	h.wantStarter(h.create("small", "sleep 1000", func(s *specs.Spec, _ *supervisor.CreateRequest) {
		s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: new(int64(4 << 20))}
	}), "own", "")
	if _, err := h.client.Start(h.ctx(), "small"); err != nil {
		t.Fatal(err)
	}
	if out, stderr, code, err := h.exec("small", "echo inside"); out != "inside\n" || code != 0 || err != nil {
		t.Errorf("the exec ended with %q %q %d, %v", out, stderr, code, err)
	}
}

func withPersonality(s *specs.Spec, _ *supervisor.CreateRequest) {
	s.Linux.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux}
}

func withoutOwnInit(_ *specs.Spec, r *supervisor.CreateRequest) { r.NoOwnInit = true }

// withHostileImage gives a container an image whose links lead out of it.
func (h *host) withHostileImage(name string, links map[string]string) option {
	h.t.Helper()
	rootfs := filepath.Join(h.dir, name)
	if err := os.MkdirAll(filepath.Join(rootfs, "bin"), 0o755); err != nil {
		h.t.Fatal(err)
	}
	for _, dir := range []string{"proc", "dev", "sys", "etc", "tmp"} {
		if _, linked := links[dir]; linked {
			continue
		}
		if err := os.Mkdir(filepath.Join(rootfs, dir), 0o755); err != nil {
			h.t.Fatal(err)
		}
	}
	for link, target := range links {
		if err := os.Symlink(target, filepath.Join(rootfs, link)); err != nil {
			h.t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(h.rootfs, "bin/busybox"), filepath.Join(rootfs, "bin/busybox")); err != nil {
		h.t.Fatal(err)
	}
	for _, applet := range []string{"sh", "cat", "ls", "true", "sleep", "grep", "echo"} {
		if err := os.Symlink("busybox", filepath.Join(rootfs, "bin", applet)); err != nil {
			h.t.Fatal(err)
		}
	}
	return func(s *specs.Spec, _ *supervisor.CreateRequest) { s.Root.Path = rootfs }
}

// withBind mounts a file or directory of the host.
func withBind(source, target string, options ...string) option {
	return func(s *specs.Spec, _ *supervisor.CreateRequest) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: target, Type: "bind", Source: source, Options: append([]string{"rbind"}, options...)})
	}
}

// TestLinksOfAnImageStayInside: a mount point below a link that leads out of the image is made inside of
// it, and not on the host.
func TestLinksOfAnImageStayInside(t *testing.T) {
	h := newHost(t).serve()
	made := "berth-" + h.name
	source := filepath.Join(h.dir, "secret")
	if err := os.WriteFile(source, []byte("from the host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	image := h.withHostileImage("links", map[string]string{"var": "/etc", "up": "../../../..", "run": "/not/there"})
	c := h.create("links", "cat /etc/"+made+"/secret /up/etc/secret /not/there/"+made+"; exec sleep 1000", image,
		withBind(source, "/var/"+made+"/secret", "ro"), withBind(source, "/up/etc/secret", "ro"), withBind(source, "/run/"+made, "ro"))
	h.wantStarter(c, "own", "")
	if _, err := h.client.Start(h.ctx(), "links"); err != nil {
		t.Fatal(err)
	}
	h.waitLine("links", "from the host")
	h.eventually("all lines", func() bool { return len(h.lines("links", "stdout")) == 3 })
	for _, outside := range []string{"/etc/" + made, "/etc/secret", "/not"} {
		if _, err := os.Lstat(outside); !os.IsNotExist(err) {
			t.Errorf("%s is on the host: %v", outside, err)
		}
	}
}

// TestHostileImagesAreRefused: a container whose /proc or /sys would be elsewhere, or whose mounts would
// replace what the kernel shows in /proc, is not created, and nothing of it is left.
func TestHostileImagesAreRefused(t *testing.T) {
	h := newHost(t).serve()
	plain := func(*specs.Spec, *supervisor.CreateRequest) {}
	for name, options := range map[string][]option{
		"proclink":  {h.withHostileImage("p", map[string]string{"proc": "/tmp"})},
		"overproc":  {plain, withBind("/tmp", "/proc")},
		"inproc":    {plain, withBind("/etc", "/proc/sys")},
		"prockeep":  {h.withHostileImage("k", map[string]string{"data": "/proc/sys"}), withBind("/etc", "/data")},
		"loop":      {h.withHostileImage("d", map[string]string{"a": "/b", "b": "/a"}), withBind("/etc", "/a/x")},
		"magic":     {h.withHostileImage("m", map[string]string{"out": "/proc/self/cwd"}), withBind("/etc", "/out/etc")},
		"onroot":    {plain, withBind("/tmp", "/")},
		"nosource":  {plain, withBind("/no/such/source", "/x")},
		"nullisdir": {plain, withBind("/etc/hostname", "/dev/null")},
		"devpts":    {withTTY, withoutMount("/dev/pts")},
		"nonetns":   {plain, withNamespace("network", "/no/such/netns")},
		"notanetns": {plain, withNamespace("network", "/etc/hostname")},
		"badoption": {plain, withTmpfs("/x", "no_such_option=1")},
		"hostsysctl": {plain, func(s *specs.Spec, _ *supervisor.CreateRequest) {
			s.Linux.Sysctl = map[string]string{"vm.swappiness": "1"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := h.client.Create(h.ctx(), h.bundle(name, []string{"/bin/true"}, options...))
			if err == nil {
				t.Fatal("it was created")
			}
			if name != "devpts" && errs.Kind(err) == nil {
				t.Errorf("error without a kind: %v", err)
			}
		})
	}
	if list, err := h.client.List(h.ctx()); err != nil || len(list) != 0 {
		t.Errorf("left: %v %v", list, err)
	}
}

func withoutMount(target string) option {
	return func(s *specs.Spec, _ *supervisor.CreateRequest) {
		for i := range s.Mounts {
			if s.Mounts[i].Destination == target {
				s.Mounts = append(s.Mounts[:i], s.Mounts[i+1:]...)
				return
			}
		}
	}
}

func withNamespace(kind specs.LinuxNamespaceType, path string) option {
	return func(s *specs.Spec, _ *supervisor.CreateRequest) {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: kind, Path: path})
	}
}

func withTmpfs(target string, options ...string) option {
	return func(s *specs.Spec, _ *supervisor.CreateRequest) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: target, Type: "tmpfs", Source: "tmpfs", Options: options})
	}
}

// TestConfinedContainerSeesWhatItShould checks what the spec of an ordinary confined container says from
// inside of it.
func TestConfinedContainerSeesWhatItShould(t *testing.T) {
	h := newHost(t).serve()
	source := filepath.Join(h.dir, "volume")
	if err := os.Mkdir(source, 0o755); err != nil {
		t.Fatal(err)
	}
	confined := func(s *specs.Spec, _ *supervisor.CreateRequest) {
		s.Root.Readonly = true
		s.Hostname = "inside"
		s.Mounts = append(s.Mounts,
			specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
			specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}},
			specs.Mount{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
			specs.Mount{Destination: "/volume", Type: "bind", Source: source, Options: []string{"rbind", "rprivate", "ro", "nosuid"}})
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: "cgroup"})
		s.Linux.MaskedPaths = []string{"/proc/kcore", "/proc/acpi", "/proc/scsi", "/sys/firmware", "/proc/nothing"}
		s.Linux.ReadonlyPaths = []string{"/proc/sys", "/proc/nothing"}
		s.Linux.Sysctl = map[string]string{"kernel.msgmax": "9000"}
		s.Process.NoNewPrivileges = true
		s.Process.User = specs.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{27}}
		s.Process.Capabilities = &specs.LinuxCapabilities{}
		s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 100, Hard: 200}}
	}
	script := strings.Join([]string{
		"test \"$(cat /proc/sys/kernel/hostname)\" = inside || echo hostname",
		"test \"$(cat /proc/sys/kernel/msgmax)\" = 9000 || echo sysctl",
		"echo 1 2>/dev/null > /proc/sys/kernel/msgmax && echo writable sysctl",
		"test -z \"$(cat /proc/kcore)\" || echo kcore is not masked",
		"grep -q ' / ro,' /proc/self/mountinfo || echo root is writable",
		"grep ' /volume ' /proc/self/mountinfo | grep -q 'ro,nosuid' || echo volume is writable",
		"grep -q ' / /sys/fs/cgroup/memory ' /proc/self/mountinfo || test -f /sys/fs/cgroup/cgroup.procs || echo cgroup",
		"grep -q '^1:name=systemd:/$\\|:/$' /proc/self/cgroup || echo cgroup namespace",
		"grep -q 'Uid:.1000.1000.1000.1000' /proc/self/status || echo uid",
		"grep -q 'Groups:.27' /proc/self/status || echo groups",
		"grep -q 'CapPrm:.0000000000000000' /proc/self/status || echo capabilities",
		"grep -q 'NoNewPrivs:.1' /proc/self/status || echo no_new_privs",
		"test \"$(ulimit -n)\" = 100 || echo rlimit",
		"for f in /proc/self/fd/*; do case $f in */[0-3]|*/10|*/255) ;; *) test -e $f && echo descriptor $f $(readlink $f);; esac; done",
		"test -c /dev/null && test -L /dev/fd && test -L /dev/ptmx || echo dev",
		"echo done",
	}, "\n")
	c := h.create("confined", script, confined)
	h.wantStarter(c, "own", "")
	if _, err := h.client.Start(h.ctx(), "confined"); err != nil {
		t.Fatal(err)
	}
	h.wantExit("confined", 0)
	h.eventually("the log", func() bool { return len(h.lines("confined", "stdout")) > 0 })
	if lines := h.lines("confined", "stdout"); len(lines) != 1 || lines[0] != "done" {
		t.Errorf("the container says %q, %q", lines, h.lines("confined", "stderr"))
	}
}
