//go:build integration

package native_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/native"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// noRootfs is for tests without containers.
type noRootfs struct{ image.Rootfs }

func (noRootfs) Keys(context.Context) ([]string, error) { return nil, nil }

// newBare returns an engine that never calls its supervisor. It creates sandboxes without a
// process.
func newBare(t testing.TB, netns string) (*native.Engine, native.Config) {
	t.Helper()
	require.Root(t)
	cfg := native.Config{
		Instance: "nativetest", StateDir: t.TempDir(), NetNSDir: netns, CgroupDriver: "cgroupfs",
		Supervisor: &supervisor.Client{}, Rootfs: noRootfs{},
	}
	e, err := native.New(cfg, native.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if err := unix.Unmount(netns, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Error(err)
		}
	})
	return e, cfg
}

const sandboxID = "00000000000000000000000000000000000000000000000000000000000000aa"

func bareSpec(dir string) *engine.SandboxSpec {
	return &engine.SandboxSpec{
		ID:  sandboxID,
		Dir: filepath.Join(dir, "sandbox-"+sandboxID),
		Config: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "web"},
			Hostname: "web-0",
			Linux: &runtimeapi.LinuxPodSandboxConfig{
				Sysctls: map[string]string{"kernel.shmmni": "1234", "net.ipv4.tcp_syncookies": "0"},
				SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
					NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
				},
			},
		},
	}
}

func TestSandboxIsCreatedAndRemovedByItsID(t *testing.T) {
	netns := t.TempDir()
	e, cfg := newBare(t, netns)
	ctx := context.Background()
	spec := bareSpec(t.TempDir())
	before := snapshot(t)

	sb, err := e.CreateSandbox(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	if sb, err = e.StartSandbox(ctx, spec, sb); err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(netns, "berth-nativetest-"+sandboxID); sb.NetNS != want {
		t.Errorf("network namespace at %s, want %s", sb.NetNS, want)
	}
	if hasNamespace(e, sb, "pid") || sb.Pid != 0 {
		t.Errorf("a sandbox that shares no PIDs has a process: %+v", sb)
	}
	err = sysns.InNetNS(sb.NetNS, func() error {
		for file, want := range map[string]string{
			"net/ipv4/tcp_syncookies": "0", "net/ipv4/ip_unprivileged_port_start": "0", "net/ipv4/ping_group_range": "0\t2147483647",
		} {
			got, err := os.ReadFile(filepath.Join("/proc/sys", file))
			if err != nil || strings.TrimSpace(string(got)) != want {
				t.Errorf("%s: %q, %v; want %q", file, got, err, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	var shm unix.Statfs_t
	if err := unix.Statfs(filepath.Join(cfg.StateDir, "sandboxes", sandboxID, "shm"), &shm); err != nil || int64(shm.Blocks)*shm.Bsize != 64<<20 {
		t.Errorf("shm has %d bytes, %v", int64(shm.Blocks)*shm.Bsize, err)
	}
	if hosts, err := os.ReadFile(filepath.Join(spec.Dir, "hosts")); err != nil || !strings.Contains(string(hosts), "localhost") {
		t.Errorf("hosts: %q, %v", hosts, err)
	}
	if _, err := os.Stat(memoryCgroup("/berth-nativetest/" + sandboxID)); err != nil {
		t.Errorf("the pod's cgroup: %v", err)
	}

	// Another engine, as after a crash. It knows only the id.
	again, err := native.New(cfg, native.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := again.StopSandbox(ctx, sandboxID); err != nil {
		t.Fatal(err)
	}
	if left := snapshot(t); strings.Contains(left, sandboxID+"/shm") || strings.Contains(left, sandboxID+"/ipc") {
		t.Errorf("a stopped sandbox holds the memory that its pod left:\n%s", left)
	}
	if err := sysns.InNetNS(sb.NetNS, func() error { return nil }); err != nil {
		t.Errorf("a stopped sandbox has no network namespace to be detached: %v", err)
	}
	for range 2 {
		if err := again.ReleaseSandbox(ctx, sandboxID); err != nil {
			t.Fatal(err)
		}
	}
	if released := snapshot(t); released != before {
		t.Errorf("mounts and cgroups before:\n%s\nof a released sandbox:\n%s", before, released)
	}
	for range 2 {
		if err := errors.Join(again.StopSandbox(ctx, sandboxID), again.RemoveSandbox(ctx, sandboxID)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(spec.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the sandbox's files are left: %v", err)
	}
	if after := snapshot(t); after != before {
		t.Errorf("mounts and cgroups before:\n%s\nafter:\n%s", before, after)
	}
}

func TestPartlyCreatedSandboxIsRemoved(t *testing.T) {
	e, _ := newBare(t, t.TempDir())
	ctx := context.Background()
	before := snapshot(t)
	spec := bareSpec(t.TempDir())
	spec.Config.Linux.Sysctls["kernel.shmmni"] = "not a number"
	if _, err := e.CreateSandbox(ctx, spec); err == nil || !strings.Contains(err.Error(), "kernel/shmmni") {
		t.Fatalf("a sysctl that the kernel refuses: %v", err)
	}
	if err := e.RemoveSandbox(ctx, sandboxID); err != nil {
		t.Fatal(err)
	}
	if after := snapshot(t); after != before {
		t.Errorf("mounts and cgroups before:\n%s\nafter:\n%s", before, after)
	}
}

func TestSharedCgroupParentStaysForTheOther(t *testing.T) {
	e, _ := newBare(t, t.TempDir())
	ctx := context.Background()
	const parent = "/nativetest-parent/deep"
	other := strings.Replace(sandboxID, "aa", "bb", 1)
	for _, id := range []string{sandboxID, other} {
		spec := bareSpec(t.TempDir())
		spec.ID, spec.Dir = id, filepath.Join(t.TempDir(), id)
		spec.Config.Linux.CgroupParent = parent
		if _, err := e.CreateSandbox(ctx, spec); err != nil {
			t.Fatal(err)
		}
	}
	// Another pod's container has its cgroup here.
	if err := os.Mkdir(memoryCgroup(parent+"/container"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := e.RemoveSandbox(ctx, sandboxID); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(memoryCgroup(parent + "/container")); err != nil {
		t.Errorf("the other's container lost its cgroup: %v", err)
	}
	if err := e.RemoveSandbox(ctx, other); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(memoryCgroup("/nativetest-parent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the parent that we made is left: %v", err)
	}
}

func TestUnknownHandler(t *testing.T) {
	e, _ := newBare(t, t.TempDir())
	spec := bareSpec(t.TempDir())
	spec.Handler = "kata"
	if _, err := e.CreateSandbox(context.Background(), spec); !errors.Is(err, errs.Invalid) {
		t.Errorf("%v, want kind Invalid", err)
	}
}

// memoryCgroup returns the path of a cgroup in the hierarchy that every host has.
func memoryCgroup(path string) string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return filepath.Join("/sys/fs/cgroup", path)
	}
	return filepath.Join("/sys/fs/cgroup/memory", path)
}

// snapshot lists the mounts and cgroups with this test's names. It must be the same before and
// after.
func snapshot(t testing.TB) string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var mine []string
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, sandboxID) {
			mine = append(mine, line)
		}
	}
	groups, err := filepath.Glob("/sys/fs/cgroup/*/berth-nativetest*")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(append(mine, groups...), "\n")
}

func BenchmarkSandbox(b *testing.B) {
	e, _ := newBare(b, b.TempDir())
	ctx := context.Background()
	spec := bareSpec(b.TempDir())
	spec.Config.Linux.Sysctls = nil
	for b.Loop() {
		sb, err := e.CreateSandbox(ctx, spec)
		if err != nil {
			b.Fatal(err)
		}
		_, err = e.StartSandbox(ctx, spec, sb)
		if err := errors.Join(err, e.RemoveSandbox(ctx, spec.ID)); err != nil {
			b.Fatal(err)
		}
	}
}
