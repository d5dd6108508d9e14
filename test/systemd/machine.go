// Package systemd creates machines for tests: the root of a distribution with systemd as pid 1 in a
// container of runc, with its own network, and all privileges that this host can give.
package systemd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/capability"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/require"
)

const (
	bootTimeout    = time.Minute
	commandTimeout = 3 * time.Minute
	endTimeout     = 30 * time.Second
)

// Machine is a running machine.
type Machine struct {
	// Root is its root directory as this host sees it.
	Root string

	t       testing.TB
	name    string
	runtime string // runc's own directory
}

// Debian12 is the distribution of most tests.
const Debian12 = "debian-12"

// Options of a Machine.
type Options struct {
	// Release is that of the image; empty for Debian12.
	Release string
	// Add are files to add, from the machine's path to the host's.
	Add map[string]string
	// Bind are directories of the host to mount, from the machine's path to the host's. What the
	// machine writes there stays.
	Bind map[string]string
	// Disk is the size of its disk in bytes; 0 for that of this host.
	Disk int64
}

// Boot copies the image of a distribution and boots it.
func Boot(t testing.TB, o Options) *Machine {
	t.Helper()
	require.Root(t)
	runc := require.Binary(t, "runc")
	dir := t.TempDir()
	m := &Machine{Root: filepath.Join(dir, "root"), t: t, name: "berth-" + filepath.Base(filepath.Dir(dir)) + "-" + filepath.Base(dir) + "-node", runtime: filepath.Join(dir, "runc")}
	if o.Disk > 0 {
		mountDisk(t, m.Root, o.Disk)
	}
	CopyRoot(t, cmp.Or(o.Release, Debian12), m.Root)
	for to, from := range o.Add {
		to = filepath.Join(m.Root, to)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		command(t, "cp", "-a", from, to)
	}
	described := m.spec(t)
	for to, from := range o.Bind {
		described.Mounts = append(described.Mounts, specs.Mount{Destination: to, Type: "bind", Source: from, Options: []string{"rbind"}})
	}
	spec, err := json.Marshal(described)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), spec, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.end(runc) })
	log, err := os.Create(filepath.Join(dir, "runc.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.CommandContext(t.Context(), runc, "--root", m.runtime, "run", "-d", "-b", dir, m.name)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		words, _ := os.ReadFile(log.Name())
		t.Fatalf("the machine does not start: %v\n%s", err, words)
	}
	m.awaitBoot()
	return m
}

// mountDisk gives a machine a disk of its own.
func mountDisk(t testing.TB, at string, size int64) {
	t.Helper()
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, fmt.Sprintf("mode=755,size=%d", size)); err != nil {
		t.Fatalf("cannot mount the machine's disk: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Errorf("cannot unmount the machine's disk: %v", err)
		}
	})
}

// CopyRoot copies the root directory of a distribution's image to a directory that is empty or does
// not exist, and returns that.
func CopyRoot(t testing.TB, release, to string) string {
	t.Helper()
	dir := "../../out/systemd"
	if release != Debian12 {
		dir += "-" + release
	}
	image, err := filepath.Abs(dir + "/root")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(image); err != nil {
		t.Fatalf("the image is not made: run test/systemd/image.sh %s: %v", release, err)
	}
	command(t, "cp", "-aT", "--reflink=auto", image, to)
	return to
}

// awaitBoot waits until systemd has completed the boot.
func (m *Machine) awaitBoot() {
	deadline := time.Now().Add(bootTimeout)
	for {
		out, err := m.Try("systemctl", "is-system-running", "--wait")
		if state := strings.TrimSpace(out); state == "running" || state == "degraded" {
			return
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("the machine does not come up: %v: %s", err, out)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// end kills the machine and removes its cgroups.
func (m *Machine) end(runc string) {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	if out, err := exec.CommandContext(ctx, runc, "--root", m.runtime, "delete", "-f", m.name).CombinedOutput(); err != nil {
		m.t.Errorf("cannot remove the machine: %v: %s", err, out)
	}
	// systemd created cgroups of its own below those that runc knows.
	hierarchies, _ := filepath.Glob("/sys/fs/cgroup/*/" + m.name)
	for _, top := range append(hierarchies, "/sys/fs/cgroup/"+m.name) {
		var dirs []string
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		if err != nil {
			m.t.Errorf("cannot list the machine's cgroups: %v", err)
		}
		for _, dir := range slices.Backward(dirs) {
			os.Remove(dir)
		}
	}
}

// Try runs a program in the machine.
func (m *Machine) Try(args ...string) (output string, err error) {
	ctx, cancel := context.WithTimeout(m.t.Context(), commandTimeout)
	defer cancel()
	cmd := m.Command(ctx, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	return out.String(), err
}

// Command prepares a program in the machine.
func (m *Machine) Command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "runc", append([]string{"--root", m.runtime, "exec", m.name}, args...)...)
}

// Run is Try that requires success.
func (m *Machine) Run(args ...string) string {
	m.t.Helper()
	out, err := m.Try(args...)
	if err != nil {
		m.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// Write writes a file of the machine.
func (m *Machine) Write(path, content string) {
	m.t.Helper()
	path = filepath.Join(m.Root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// spec is a container with as few limits as this host allows.
func (m *Machine) spec(t testing.TB) *specs.Spec {
	mount := func(at, kind, source string, options ...string) specs.Mount {
		return specs.Mount{Destination: at, Type: kind, Source: source, Options: options}
	}
	caps := heldCapabilities(t)
	spec := &specs.Spec{
		Version: "1.0.2", Hostname: "node",
		Root: &specs.Root{Path: m.Root},
		Process: &specs.Process{
			// From 256 on systemd requires a setting for a host with cgroups of both versions, from
			// the kernel's command line. In a container it takes its own.
			Args: []string{"/lib/systemd/systemd", "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1"}, Cwd: "/", Env: []string{"container=docker", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
		},
		Mounts: []specs.Mount{
			mount("/proc", "proc", "proc"), mount("/sys", "sysfs", "sysfs"), mount("/dev", "tmpfs", "tmpfs", "nosuid", "mode=755"),
			mount("/dev/pts", "devpts", "devpts", "newinstance", "ptmxmode=0666", "mode=0620"), mount("/dev/shm", "tmpfs", "shm"),
			mount("/dev/mqueue", "mqueue", "mqueue"), mount("/sys/fs/cgroup", "cgroup", "cgroup", "rw"),
			mount("/run", "tmpfs", "tmpfs", "mode=755"), mount("/tmp", "tmpfs", "tmpfs"),
		},
		Linux: &specs.Linux{
			RootfsPropagation: "shared", CgroupsPath: "/" + m.name,
			// These settings belong to this host, too.
			ReadonlyPaths: []string{"/proc/sys/vm", "/proc/sys/fs", "/proc/sys/kernel"},
			Resources:     &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}},
		},
	}
	for _, kind := range []specs.LinuxNamespaceType{
		specs.PIDNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.MountNamespace, specs.CgroupNamespace,
	} {
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: kind})
	}
	return spec
}

// heldCapabilities lists the capabilities that this process may pass on.
func heldCapabilities(t testing.TB) []string {
	held, err := capability.NewPid2(0)
	if err == nil {
		err = held.Load()
	}
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, c := range capability.ListKnown() {
		if held.Get(capability.BOUNDING, c) {
			list = append(list, "CAP_"+strings.ToUpper(c.String()))
		}
	}
	return list
}

func command(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
