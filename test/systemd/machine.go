// Package systemd makes machines for tests: a Debian root with systemd as pid 1 in a
// container of runc, with its own network, and all the power that this host can give.
package systemd

import (
	"bytes"
	"context"
	"encoding/json"
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

	"github.com/berthrun/berth/internal/require"
)

const (
	bootTimeout    = time.Minute
	commandTimeout = 3 * time.Minute
	endTimeout     = 30 * time.Second
)

// Machine is a machine that runs.
type Machine struct {
	// Root is its root directory as this host sees it.
	Root string

	t       testing.TB
	name    string
	runtime string // runc's own directory
}

// Boot copies the image, with the files of add (machine's path to ours) in it, and boots it.
func Boot(t testing.TB, add map[string]string) *Machine {
	t.Helper()
	require.Root(t)
	runc := require.Binary(t, "runc")
	dir := t.TempDir()
	m := &Machine{Root: CopyRoot(t, filepath.Join(dir, "root")), t: t, name: "berth-" + filepath.Base(filepath.Dir(dir)) + "-node", runtime: filepath.Join(dir, "runc")}
	for to, from := range add {
		to = filepath.Join(m.Root, to)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		command(t, "cp", "-a", from, to)
	}
	spec, err := json.Marshal(m.spec(t))
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

// CopyRoot copies the image's root directory to a directory that is not there, and returns
// that.
func CopyRoot(t testing.TB, to string) string {
	t.Helper()
	image, err := filepath.Abs("../../out/systemd/root")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(image); err != nil {
		t.Fatalf("the image is not made: run test/systemd/image.sh: %v", err)
	}
	command(t, "cp", "-a", "--reflink=auto", image, to)
	return to
}

// awaitBoot waits until systemd says that it is done.
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
	// systemd made cgroups of its own below those that runc knows.
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

// Run is Try that must go well.
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
			Args: []string{"/lib/systemd/systemd"}, Cwd: "/", Env: []string{"container=docker", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
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
			// These settings are this host's, too.
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

// heldCapabilities lists what this process may pass on.
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
