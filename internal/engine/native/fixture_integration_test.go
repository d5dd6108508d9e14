//go:build integration

package native_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/native"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/spawn"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// world is an engine with a real supervisor, in separate directories for each test.
type world struct {
	*native.Engine
	t      testing.TB
	cfg    native.Config
	dir    string
	rootfs *busyboxRootfs
	ids    int
}

const patience = 30 * time.Second

func newWorld(t testing.TB) *world {
	t.Helper()
	require.Root(t)
	busybox := require.Binary(t, "busybox")
	binary := filepath.Join(os.Getenv("BERTH_BIN"), "berth-supervisor")
	if os.Getenv("BERTH_BIN") == "" {
		t.Fatal("BERTH_BIN is not set: run `make build` and set it to the bin directory")
	}
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	if err := os.MkdirAll(filepath.Join(dir, "logs"), 0o755); err != nil {
		t.Fatal(err)
	}
	mountState(t, state)
	w := &world{t: t, dir: dir, rootfs: &busyboxRootfs{dir: filepath.Join(dir, "rootfs"), busybox: busybox}}
	w.cfg = native.Config{
		Instance: "nativetest", StateDir: filepath.Join(state, "engine"), NetNSDir: filepath.Join(dir, "netns"), ReadyNamespaces: 2,
		PodInit:    binary, // and the host's own cgroup driver
		Supervisor: startSupervisor(t, binary, filepath.Join(state, "supervisor")), Rootfs: w.rootfs,
	}
	var err error
	if w.Engine, err = native.New(w.cfg, native.Rules{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(w.Engine.Close(), unix.Unmount(w.cfg.NetNSDir, 0)); err != nil {
			t.Error(err)
		}
	})
	return w
}

func mountState(t testing.TB, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("berth-test", dir, "tmpfs", 0, "mode=711"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The kernel closes the files of a killed process asynchronously.
		waitUntil(t, "nobody uses the state directory", func() bool { return unix.Unmount(dir, 0) == nil })
	})
}

func startSupervisor(t testing.TB, binary, state string) *supervisor.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "supervisor.log")
	if err := spawn.Ensure(ctx, spawn.Options{Binary: binary, StateDir: state, LogFile: log}); err != nil {
		t.Fatal(err)
	}
	client, err := supervisor.Connect(ctx, supervisor.Options{Socket: spawn.Socket(state)})
	if err != nil {
		t.Fatal(err)
	}
	info, err := client.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(log)
			t.Logf("the supervisor's log:\n%s", text)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		// Stop the keeper first, because it would restart the supervisor.
		kill(t, info.KeeperPid)
		kill(t, info.Pid)
	})
	return client
}

func kill(t testing.TB, pid int) {
	t.Helper()
	if pid <= 1 {
		return
	}
	pidfd, err := sysproc.OpenPidfd(pid)
	if err != nil {
		return // it has exited
	}
	defer pidfd.Close()
	// Both end by themselves when the last client has left, so the process may end here.
	if err := errs.IgnoreNotFound(sysproc.SignalPidfd(pidfd, syscall.SIGKILL)); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := sysproc.AwaitExit(ctx, pidfd); err != nil {
		t.Error(err)
	}
}

func (w *world) id() string {
	w.ids++
	return fmt.Sprintf("%064x", 0xbe0000+w.ids)
}

// sandbox creates and starts a sandbox. change may be nil.
func (w *world) sandbox(change func(*runtimeapi.PodSandboxConfig)) (*engine.SandboxSpec, *engine.Sandbox) {
	w.t.Helper()
	id := w.id()
	config := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "u1"},
		Hostname:     "web-0",
		LogDirectory: filepath.Join(w.dir, "logs"),
		DnsConfig:    &runtimeapi.DNSConfig{Servers: []string{"192.0.2.53"}},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
	if change != nil {
		change(config)
	}
	spec := &engine.SandboxSpec{ID: id, Config: config, Dir: filepath.Join(w.dir, "files", id)}
	w.t.Cleanup(func() { w.removeSandbox(id) })
	sb, err := w.CreateSandbox(context.Background(), spec)
	if err != nil {
		w.t.Fatal(err)
	}
	if sb, err = w.StartSandbox(context.Background(), spec, sb); err != nil {
		w.t.Fatal(err)
	}
	return spec, sb
}

func (w *world) removeSandbox(id string) {
	ctx := context.Background()
	if err := errors.Join(w.StopSandbox(ctx, id), w.RemoveSandbox(ctx, id)); err != nil {
		w.t.Error(err)
	}
}

// container creates a container that runs a shell script, and starts it.
func (w *world) container(spec *engine.SandboxSpec, sb *engine.Sandbox, script string, change func(*engine.ContainerSpec)) *engine.ContainerSpec {
	w.t.Helper()
	c := w.containerSpec(spec, sb, script, change)
	w.t.Cleanup(func() {
		if err := w.Remove(context.Background(), c.ID); err != nil {
			w.t.Error(err)
		}
	})
	if _, err := w.Create(context.Background(), c); err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.Start(context.Background(), c.ID); err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *world) containerSpec(spec *engine.SandboxSpec, sb *engine.Sandbox, script string, change func(*engine.ContainerSpec)) *engine.ContainerSpec {
	id := w.id()
	c := &engine.ContainerSpec{
		ID: id, SandboxSpec: spec, Sandbox: sb, ImageID: "busybox",
		ImageConfig: imagespec.ImageConfig{Env: []string{"PATH=/bin"}},
		LogPath:     filepath.Join(w.dir, "logs", id+".log"),
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "c"},
			Command:  []string{"sh", "-c", script},
			LogPath:  id + ".log",
			Linux: &runtimeapi.LinuxContainerConfig{
				Resources: &runtimeapi.LinuxContainerResources{CpuShares: 2},
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
					NamespaceOptions: spec.Config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
					Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
				},
			},
		},
	}
	if change != nil {
		change(c)
	}
	return c
}

// output runs a script to its end in a new container and returns its output and its exit code.
func (w *world) output(spec *engine.SandboxSpec, sb *engine.Sandbox, script string, change func(*engine.ContainerSpec)) (string, int32) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	exits, err := w.Exits(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	c := w.container(spec, sb, script, change)
	for exit := range exits {
		if exit.ContainerID == c.ID {
			return w.log(c), exit.Code
		}
	}
	w.t.Fatalf("no exit of %q", script)
	return "", 0
}

// log returns the lines of a container's log without their times and tags.
func (w *world) log(c *engine.ContainerSpec) string {
	w.t.Helper()
	data, err := os.ReadFile(c.LogPath)
	if err != nil {
		w.t.Fatal(err)
	}
	var b strings.Builder
	for line := range strings.Lines(string(data)) {
		if fields := strings.SplitN(line, " ", 4); len(fields) == 4 {
			b.WriteString(strings.TrimSuffix(fields[3], "\n") + "\n")
		}
	}
	return b.String()
}

// exec runs a script in a running container.
func (w *world) exec(c *engine.ContainerSpec, script string) (string, int32) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var out strings.Builder
	code, err := w.Exec(ctx, &engine.ExecSpec{ContainerID: c.ID, Command: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
	if err != nil {
		w.t.Fatalf("exec %q: %v", script, err)
	}
	return out.String(), code
}

// busyboxRootfs is an image.Rootfs with one image, which contains only busybox.
type busyboxRootfs struct{ dir, busybox string }

func (r *busyboxRootfs) Prepare(_ context.Context, spec image.RootfsSpec) (*image.Mounted, error) {
	root := filepath.Join(r.dir, spec.Key)
	if _, err := os.Lstat(filepath.Join(root, "bin", "true")); err == nil {
		return &image.Mounted{Path: root}, nil
	}
	for _, dir := range []string{"bin", "etc", "proc", "dev", "sys", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return nil, err
		}
	}
	program, err := os.ReadFile(r.busybox)
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		os.WriteFile(filepath.Join(root, "bin", "busybox"), program, 0o755),
		os.WriteFile(filepath.Join(root, "etc", "passwd"), []byte("root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\n"), 0o644),
		os.WriteFile(filepath.Join(root, "etc", "group"), []byte("root:x:0:\nstaff:x:50:app\n"), 0o644),
	)
	for _, applet := range strings.Fields("sh cat echo id ls sleep touch hostname mount ps stty kill sysctl ip pwd env grep dd mkdir mknod true") { // true comes last
		if linkErr := os.Symlink("busybox", filepath.Join(root, "bin", applet)); !errors.Is(linkErr, os.ErrExist) {
			err = errors.Join(err, linkErr)
		}
	}
	return &image.Mounted{Path: root}, err
}

func (r *busyboxRootfs) MakeVolume(context.Context, image.VolumeSpec) (string, error) {
	return "", fmt.Errorf("its image declares no volumes: %w", errs.Unsupported)
}

func (r *busyboxRootfs) Snapshotter(string) string { return "none" }

func (r *busyboxRootfs) CanMap(string) error {
	return fmt.Errorf("its files are nobody's but root's: %w", errs.Unsupported)
}

func (r *busyboxRootfs) Release(_ context.Context, key string) error {
	return os.RemoveAll(filepath.Join(r.dir, key))
}

func (r *busyboxRootfs) WritableUsage(context.Context, string, sysfile.Pace) (image.Usage, error) {
	return image.Usage{Mountpoint: r.dir, Bytes: 1, Inodes: 1, At: time.Now()}, nil
}

func (r *busyboxRootfs) Keys(context.Context) ([]string, error) {
	entries, err := os.ReadDir(r.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var keys []string
	for _, entry := range entries {
		keys = append(keys, entry.Name())
	}
	return keys, err
}

// hasNamespace reports whether the sandbox has its own namespace of this type.
func hasNamespace(e engine.Engine, sb *engine.Sandbox, kind string) bool {
	return slices.ContainsFunc(e.ViewSandbox(sb).Namespaces, func(ns engine.Namespace) bool { return ns.Type == kind })
}
