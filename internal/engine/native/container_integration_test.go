//go:build integration

package native_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/enginetest"
	"github.com/berthrun/berth/internal/engine/native"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/supervisor"
)

func TestEngineContract(t *testing.T) {
	enginetest.Run(t, func(t *testing.T) *enginetest.Setup {
		w := newWorld(t)
		shell := func(script string) []string { return []string{"sh", "-c", script} }
		return &enginetest.Setup{
			Engine: w.Engine, ImageID: "busybox", ImageConfig: imagespec.ImageConfig{Env: []string{"PATH=/bin"}},
			Programs: enginetest.Programs{
				Exit:     func(code int) []string { return shell("exit " + strconv.Itoa(code)) },
				Sleep:    shell("trap 'exit 143' TERM; while :; do sleep 0.1; done"),
				Stubborn: shell("trap '' TERM; while :; do sleep 0.1; done"),
				Missing:  []string{"/no/such/program"},
				Echo:     func(text string) []string { return []string{"echo", text} },
				Cat:      []string{"cat"},
			},
		}
	})
}

// want runs a script to its end and compares its output.
func (w *world) want(spec *engine.SandboxSpec, sb *engine.Sandbox, script, want string, change func(*engine.ContainerSpec)) {
	w.t.Helper()
	if got, code := w.output(spec, sb, script, change); got != want {
		w.t.Errorf("%s\ngot  %q and code %d\nwant %q", script, got, code, want)
	}
}

func security(c *engine.ContainerSpec) *runtimeapi.LinuxContainerSecurityContext {
	return c.Config.Linux.SecurityContext
}

func TestContainerSeesItsPod(t *testing.T) {
	w := newWorld(t)
	spec, sb := w.sandbox(nil)
	w.want(spec, sb, "hostname; cat /etc/hostname; echo $HOSTNAME; cat /etc/resolv.conf", "web-0\nweb-0\nweb-0\nnameserver 192.0.2.53\n", nil)
	w.want(spec, sb, "echo $$; pwd; echo $HOME; id -u; id -g", "1\n/\n/root\n0\n0\n", nil)
	w.want(spec, sb, "id -u; id -g; id -G; echo $HOME; pwd", "1000\n1001\n1001 50 77\n/home/app\n/tmp\n", func(c *engine.ContainerSpec) {
		c.ImageConfig.User, c.Config.WorkingDir = "app", "/tmp"
		security(c).SupplementalGroups = []int64{77}
	})
	w.want(spec, sb, "touch /x 2>/dev/null || echo readonly; touch /etc/hosts 2>/dev/null || echo hosts; touch /dev/shm/x && echo shm", "readonly\nhosts\nshm\n", func(c *engine.ContainerSpec) {
		security(c).ReadonlyRootfs = true
	})
	w.want(spec, sb, "grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status", "CapEff:\t0000000000000400\nNoNewPrivs:\t1\nSeccomp:\t2\n", func(c *engine.ContainerSpec) {
		security(c).NoNewPrivs = true
		security(c).Capabilities = &runtimeapi.Capability{DropCapabilities: []string{"ALL"}, AddCapabilities: []string{"NET_BIND_SERVICE"}}
	})
	w.want(spec, sb, "ls /proc/self/fd | grep -vE '^[0-2]$' | grep -v 3; ls /dev/null", "/dev/null\n", nil)
	w.want(spec, sb, "cat /proc/version; touch /proc/sys/kernel/x 2>/dev/null || echo ro", "ro\n", func(c *engine.ContainerSpec) {
		security(c).MaskedPaths, security(c).ReadonlyPaths = []string{"/proc/version"}, []string{"/proc/sys"}
	})
}

func TestPrivilegedContainer(t *testing.T) {
	w := newWorld(t)
	spec, sb := w.sandbox(func(c *runtimeapi.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true })
	own, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, bounding, _ := strings.Cut(string(own), "CapBnd:\t")
	bounding, _, _ = strings.Cut(bounding, "\n")
	w.want(spec, sb, "grep CapEff /proc/self/status; grep Seccomp: /proc/self/status; mount -t tmpfs none /tmp && echo mounted; mknod /tmp/kmsg c 1 11 && dd if=/tmp/kmsg of=/dev/null bs=1 count=0 2>/dev/null && echo device",
		"CapEff:\t"+bounding+"\nSeccomp:\t0\nmounted\ndevice\n", func(c *engine.ContainerSpec) { security(c).Privileged = true })
}

func TestMountsAndDevices(t *testing.T) {
	w := newWorld(t)
	spec, sb := w.sandbox(nil)
	source := filepath.Join(w.dir, "volume")
	if err := os.Mkdir(source, 0o777); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(w.dir, "made", "by", "us")
	w.want(spec, sb, "echo text > /data/file && touch /data/ro/x 2>/dev/null || echo ro; ls -d /made; dd if=/dev/nothing of=/data/empty bs=1 2>/dev/null; ls /data", "ro\n/made\nempty\nfile\nro\n", func(c *engine.ContainerSpec) {
		c.Config.Mounts = []*runtimeapi.Mount{
			{ContainerPath: "/data/ro", HostPath: missing, Readonly: true},
			{ContainerPath: "/data", HostPath: source},
			{ContainerPath: "/made", HostPath: missing},
		}
		c.Config.Devices = []*runtimeapi.Device{{HostPath: "/dev/null", ContainerPath: "/dev/nothing", Permissions: "rw"}}
	})
	if text, err := os.ReadFile(filepath.Join(source, "file")); string(text) != "text\n" || err != nil {
		t.Errorf("the volume has %q, %v", text, err)
	}
}

func TestContainersShareIPC(t *testing.T) {
	w := newWorld(t)
	spec, sb := w.sandbox(func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.Sysctls = map[string]string{"kernel.shmmni": "1234", "net.ipv4.tcp_syncookies": "0"}
	})
	w.want(spec, sb, "echo shared > /dev/shm/file", "", nil)
	w.want(spec, sb, "cat /dev/shm/file /proc/sys/kernel/shmmni /proc/sys/net/ipv4/tcp_syncookies", "shared\n1234\n0\n", nil)
	other, otherSb := w.sandbox(nil)
	w.want(other, otherSb, "ls /dev/shm", "", nil)
}

func TestHostNamespaces(t *testing.T) {
	w := newWorld(t)
	spec, sb := w.sandbox(func(c *runtimeapi.PodSandboxConfig) {
		c.Hostname = ""
		c.Linux.SecurityContext.NamespaceOptions = &runtimeapi.NamespaceOption{
			Network: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_NODE, Ipc: runtimeapi.NamespaceMode_NODE,
		}
	})
	if all := w.Engine.ViewSandbox(sb).Namespaces; len(all) > 0 {
		t.Errorf("namespaces were made: %+v", all)
	}
	var want strings.Builder
	for _, kind := range []string{"net", "ipc", "uts", "pid"} {
		link, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			t.Fatal(err)
		}
		want.WriteString(link + "\n")
	}
	w.want(spec, sb, "for k in net ipc uts pid; do busybox readlink /proc/self/ns/$k; done", want.String(), nil)
}

func TestPodSharesPIDs(t *testing.T) {
	w := newWorld(t)
	spec, sb := w.sandbox(func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	})
	if sb.Pid == 0 || !hasNamespace(w.Engine, sb, "pid") {
		t.Fatalf("no init: %+v", sb)
	}
	first := w.container(spec, sb, "trap 'exit 0' TERM; while :; do sleep 0.05; done", nil)
	second := w.container(spec, sb, "exec sleep 1000", nil)
	out, code := w.exec(first, "kill -0 1; ps | grep -c '[s]leep 1000'; kill -TERM 1; sleep 0.1; ps | grep -c '[p]od-init'")
	if out != "1\n1\n" || code != 0 {
		t.Errorf("seen from a container: %q, %d", out, code)
	}
	// An orphan is reparented to the pod's init, which leaves no zombie.
	orphan := "pid=$(sleep 0.1 > /dev/null & echo $!); for i in $(seq 200); do [ -d /proc/$pid ] || exit 0; sleep 0.05; done; cat /proc/$pid/stat; exit 1"
	if out, code := w.exec(second, orphan); code != 0 {
		t.Errorf("the orphan stays a zombie: %q", out)
	}
	if err := w.StopSandbox(context.Background(), spec.ID); err != nil {
		t.Error(err)
	}
	waitUntil(t, "the containers end with the pod's init", func() bool {
		return errors.Is(w.Signal(context.Background(), second.ID, 0, false), errs.NotFound)
	})
}

func TestTargetPID(t *testing.T) {
	w := newWorld(t)
	spec, sb := w.sandbox(nil)
	c := w.containerSpec(spec, sb, "exec sleep 1000", nil)
	t.Cleanup(func() {
		if err := w.Remove(context.Background(), c.ID); err != nil {
			t.Error(err)
		}
	})
	if _, err := w.Create(context.Background(), c); err != nil {
		t.Fatal(err)
	}
	pid, err := w.Start(context.Background(), c.ID)
	if err != nil {
		t.Fatal(err)
	}
	w.want(spec, sb, "ps -o pid,args | grep '[s]leep 1000'", "    1 sleep 1000\n", func(debug *engine.ContainerSpec) {
		debug.TargetPID = pid
		security(debug).NamespaceOptions = &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_TARGET, TargetId: c.ID}
	})
}

func TestTTYAndExec(t *testing.T) {
	w := newWorld(t)
	spec, sb := w.sandbox(nil)
	c := w.container(spec, sb, "busybox tty; echo $TERM; exec sleep 1000", func(c *engine.ContainerSpec) { c.Config.Tty = true })
	waitUntil(t, "the terminal's lines are in the log", func() bool { return strings.Contains(w.log(c), "xterm") })
	if got := strings.ReplaceAll(w.log(c), "\r", ""); got != "/dev/pts/0\nxterm\n" {
		t.Errorf("the log has %q", got)
	}
	if out, code := w.exec(c, "echo $HOSTNAME; id -u; exit 5"); out != "web-0\n0\n" || code != 5 {
		t.Errorf("exec: %q, %d", out, code)
	}
}

// TestInspectShowsTheStarter: an ordinary container and a privileged one take berth's own init, unless the
// rules say otherwise.
func TestInspectShowsTheStarter(t *testing.T) {
	w := newWorld(t)
	spec, sb := w.sandbox(func(c *runtimeapi.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true })
	check := func(c *engine.ContainerSpec, starter string, hasReason bool) {
		t.Helper()
		shown, err := w.Inspect(context.Background(), &engine.InspectSpec{ContainerID: c.ID})
		if err != nil || shown["starter"] != starter || (shown["starterReason"] != nil) != hasReason {
			t.Errorf("inspect shows %v, %v, %v, want %s", shown["starter"], shown["starterReason"], err, starter)
		}
	}
	check(w.container(spec, sb, "sleep 1000", nil), "own", false)
	check(w.container(spec, sb, "sleep 1000", func(c *engine.ContainerSpec) { security(c).Privileged = true }), "own", false)
	w.SetRules(native.Rules{NoOwnInit: true})
	check(w.container(spec, sb, "sleep 1000", nil), "libcontainer", true)
}

func TestStatsArePlausible(t *testing.T) {
	w := newWorld(t)
	spec, sb := w.sandbox(nil)
	c := w.container(spec, sb, "while :; do :; done", func(c *engine.ContainerSpec) {
		c.Config.Linux.Resources.MemoryLimitInBytes = 64 << 20
	})
	ctx := context.Background()
	var stats *runtimeapi.ContainerStats
	waitUntil(t, "CPU is used and its rate known", func() bool {
		all, err := w.Stats(ctx, []string{c.ID})
		if err != nil {
			t.Fatal(err)
		}
		stats = all[c.ID]
		return stats.GetCpu().GetUsageNanoCores().GetValue() > 1e7
	})
	memory := stats.GetMemory()
	if used := memory.GetWorkingSetBytes().GetValue(); used == 0 || used+memory.GetAvailableBytes().GetValue() != 64<<20 {
		t.Errorf("memory: %v", memory)
	}
	pods, err := w.SandboxStats(ctx, []engine.SandboxRef{{Spec: spec, Sandbox: sb}})
	if err != nil {
		t.Fatal(err)
	}
	pod := pods[spec.ID]
	if pod.GetCpu().GetUsageCoreNanoSeconds().GetValue() == 0 || pod.GetProcess().GetProcessCount().GetValue() == 0 {
		t.Errorf("the pod's: %v", pod)
	}
	if pod.GetNetwork() != nil {
		t.Errorf("a pod that nobody attached to a network has one: %v", pod.GetNetwork())
	}
}

func TestRefusedByTheImage(t *testing.T) {
	w := newWorld(t)
	spec, sb := w.sandbox(nil)
	private := t.TempDir()
	bindPrivate(t, private)
	for name, change := range map[string]func(*engine.ContainerSpec){
		"a user that does not exist": func(c *engine.ContainerSpec) { c.ImageConfig.User = "ghost" },
		"a user out of range":        func(c *engine.ContainerSpec) { c.ImageConfig.User = "4294967296" },
		"no command":                 func(c *engine.ContainerSpec) { c.Config.Command = nil },
		"a propagation that the source does not have": func(c *engine.ContainerSpec) {
			c.Config.Mounts = []*runtimeapi.Mount{{ContainerPath: "/x", HostPath: private, Propagation: runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL}}
		},
	} {
		c := w.containerSpec(spec, sb, "true", change)
		if _, err := w.Create(context.Background(), c); !errors.Is(err, errs.Invalid) {
			t.Errorf("%s: %v, want kind Invalid", name, err)
		}
		if err := w.Remove(context.Background(), c.ID); err != nil {
			t.Error(err)
		}
	}
}

// bindPrivate makes dir a private mount, on any host.
func bindPrivate(t *testing.T, dir string) {
	t.Helper()
	if err := syscall.Mount(dir, dir, "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := syscall.Mount("", dir, "", syscall.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
}

// After a crash of the daemon, another engine finds and removes everything.
func TestNothingIsLeft(t *testing.T) {
	w := newWorld(t)
	before := snapshot(t)
	spec, sb := w.sandbox(func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	})
	c := w.container(spec, sb, "exec sleep 1000", nil)
	ctx := context.Background()
	list, err := w.List(ctx)
	if err != nil || len(list) != 2 {
		t.Fatalf("%+v, %v; want the sandbox and the container", list, err)
	}
	for _, actual := range list {
		if actual.State != engine.StateRunning || actual.Pid == 0 || (actual.Kind == engine.KindSandbox) != (actual.ID == spec.ID) {
			t.Errorf("%+v", actual)
		}
	}
	if err := errors.Join(w.Remove(ctx, c.ID), w.StopSandbox(ctx, spec.ID), w.RemoveSandbox(ctx, spec.ID)); err != nil {
		t.Fatal(err)
	}
	if list, err = w.List(ctx); err != nil || len(list) != 0 {
		t.Errorf("left: %+v, %v", list, err)
	}
	if err := syscall.Kill(sb.Pid, 0); err == nil {
		t.Errorf("the pod's init %d lives", sb.Pid)
	}
	if after := snapshot(t); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

func waitUntil(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

func TestUpdateChangesLimits(t *testing.T) {
	w := newWorld(t)
	spec, sb := w.sandbox(nil)
	c := w.container(spec, sb, "exec sleep 1000", nil)
	ctx := context.Background()
	if err := w.Update(ctx, c.ID, &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 32 << 20, CpuShares: 512}); err != nil {
		t.Fatal(err)
	}
	all, err := w.Stats(ctx, []string{c.ID})
	if err != nil {
		t.Fatal(err)
	}
	memory := all[c.ID].GetMemory()
	if sum := memory.GetWorkingSetBytes().GetValue() + memory.GetAvailableBytes().GetValue(); sum != 32<<20 {
		t.Errorf("the limit is %d after the update", sum)
	}
	if err := w.CheckResources(request.FieldUpdate, &runtimeapi.LinuxContainerResources{CpuShares: -1}); !errors.Is(err, errs.Invalid) {
		t.Errorf("a limit that makes no sense: %v, want kind Invalid", err)
	}
}

// BenchmarkCreate measures what the engine adds to the supervisor, without the root filesystem.
func BenchmarkCreate(b *testing.B) {
	w := newWorld(b)
	spec, sb := w.sandbox(nil)
	ctx := context.Background()
	c := w.containerSpec(spec, sb, "true", func(c *engine.ContainerSpec) {
		for i := range 5 {
			c.Config.Mounts = append(c.Config.Mounts, &runtimeapi.Mount{ContainerPath: "/m" + strconv.Itoa(i), HostPath: w.dir})
		}
	})
	var own, supervisors time.Duration
	for b.Loop() {
		if _, err := w.rootfs.Prepare(ctx, image.RootfsSpec{Key: c.ID}); err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		if _, err := w.Create(ctx, c); err != nil {
			b.Fatal(err)
		}
		whole := time.Since(start)
		if err := w.cfg.Supervisor.Remove(ctx, c.ID); err != nil {
			b.Fatal(err)
		}
		// The same bundle again, without the engine.
		start = time.Now()
		_, err := w.cfg.Supervisor.Create(ctx, &supervisor.CreateRequest{
			ID: c.ID, Bundle: filepath.Join(w.cfg.StateDir, "bundles", c.ID), LogDir: filepath.Join(w.dir, "logs"), LogPath: c.Config.LogPath,
		})
		if err != nil {
			b.Fatal(err)
		}
		alone := time.Since(start)
		own, supervisors = own+whole-alone, supervisors+alone
		if err := w.Remove(ctx, c.ID); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(own.Microseconds())/float64(b.N), "own-µs/op")
	b.ReportMetric(float64(supervisors.Microseconds())/float64(b.N), "supervisor-µs/op")
}
