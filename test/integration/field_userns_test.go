//go:build integration

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// usersRoot is the host id of root in the tests' user namespaces.
const usersRoot = 400000

func idRange(host uint32) []*runtimeapi.IDMapping {
	return []*runtimeapi.IDMapping{{HostId: host, Length: 65536}}
}

type podChange func(*runtimeapi.PodSandboxConfig, *runtimeapi.ContainerConfig)

// runPodWith runs a pod of one container that runs a script, after change.
func runPodWith(b *harness.Berth, name, script string, change podChange) harness.Pod {
	b.T.Helper()
	config, container := b.Sandbox(name), b.Container("c", script)
	change(config, container)
	pod := harness.Pod{Config: config, Sandbox: b.RunSandbox(config), LogFile: filepath.Join(config.LogDirectory, "c", "0.log")}
	pod.Container = b.Create(pod.Sandbox, container, config)
	b.StartContainer(pod.Container)
	return pod
}

// inUsers puts a pod and its container into a user namespace, before change.
func inUsers(change podChange) podChange {
	return func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
		config.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{
			Mode: runtimeapi.NamespaceMode_POD, Uids: idRange(usersRoot), Gids: idRange(usersRoot),
		}
		container.Linux.SecurityContext.NamespaceOptions = config.Linux.SecurityContext.NamespaceOptions
		if change != nil {
			change(config, container)
		}
	}
}

func addCapabilities(container *runtimeapi.ContainerConfig, names ...string) {
	container.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{AddCapabilities: names}
}

// mayMount allows a container with the capability to mount, which AppArmor's default profile
// forbids.
func mayMount(container *runtimeapi.ContainerConfig) {
	container.Linux.SecurityContext.Apparmor = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
}

// wantOut runs scripts in a container and compares the words that they print.
func wantOut(t *testing.T, b *harness.Berth, container string, scripts [][2]string) {
	t.Helper()
	for _, s := range scripts {
		answer := b.Exec(container, s[0])
		if got := strings.Join(strings.Fields(string(answer.Stdout)), " "); got != s[1] {
			t.Errorf("%s: %q (code %d, %s), want %q", s[0], got, answer.ExitCode, answer.Stderr, s[1])
		}
	}
}

// initOf returns the pid of a container's init.
func initOf(t *testing.T, b *harness.Berth, container string) int {
	t.Helper()
	answer, err := b.Runtime.ContainerStatus(b.Ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: container, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	var info struct{ Pid int }
	if err := json.Unmarshal([]byte(answer.Info["info"]), &info); err != nil || info.Pid == 0 {
		t.Fatalf("no pid in %q: %v", answer.Info["info"], err)
	}
	return info.Pid
}

// TestFieldUsernsOptions: userns_options of PodSandboxConfig.
func TestFieldUsernsOptions(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	if engineRefuses(t, b, translate.UserNamespaces, inUsers(nil), "userns_options") {
		usersOfTheNode(t, b)
		wrongUsers(t, b)
		return
	}
	for _, c := range []struct {
		name string
		test func(*testing.T, *harness.Berth)
	}{
		{"POD owns all of the pod's", usersOwnAll},
		{"POD and the host's network", usersOnHostNetwork},
		{"POD and a shared PID namespace", usersShareProcesses},
		{"POD, users and groups", usersAndGroups},
		{"POD with few ids", fewUsers},
		{"POD, streams and terminals", usersStreams},
		{"POD and privileged", usersPrivileged},
		{"POD and devices", usersDevices},
		{"POD over crashes", usersSurvive},
		{"NODE", usersOfTheNode},
		{"wrong ones", wrongUsers},
		{"reported by Status", usersReported},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer func(parent testing.TB) { b.T = parent }(b.T)
			b.T = t
			c.test(t, b)
		})
	}
}

// usersOwnAll: namespaces, root filesystem and files belong to the pod's root, which is an
// unprivileged user of the host.
func usersOwnAll(t *testing.T, b *harness.Berth) {
	pod := runPodWith(b, "users", "sleep 1000", inUsers(func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
		config.Linux.Sysctls = map[string]string{"kernel.shmmni": "1234", "net.ipv4.ip_forward": "1"}
		addCapabilities(container, "SYS_ADMIN", "NET_ADMIN")
		mayMount(container)
	}))
	wantOut(t, b, pod.Container, [][2]string{
		{"cat /proc/self/uid_map", fmt.Sprint("0 ", usersRoot, " 65536")},
		{"cat /proc/self/gid_map", fmt.Sprint("0 ", usersRoot, " 65536")},
		{"cat /proc/self/setgroups", "allow"},
		{"id -u; id -g", "0 0"},
		{"stat -c %u:%g / /bin/busybox /etc/hosts /etc/hostname /etc/resolv.conf /dev/shm /dev/mqueue", strings.TrimSpace(strings.Repeat("0:0 ", 7))},
		{"echo x > /etc/hosts && echo y > /etc/resolv.conf && cat /etc/hosts /etc/resolv.conf", "x y"},
		{"touch /new /dev/shm/new && stat -c %u:%g /new /dev/shm/new", "0:0 0:0"},
		{"chown 1000:1001 /new && stat -c %u:%g /new", "1000:1001"},
		{"cat /proc/sys/kernel/shmmni /proc/sys/net/ipv4/ip_forward", "1234 1"},
		{"hostname; cat /etc/hostname", "users users"},
		{"hostname renamed && hostname", "renamed"},
		{"ip link set lo mtu 1400 && cat /sys/class/net/lo/mtu", "1400"},
		{"mount -t tmpfs none /tmp && echo mounted", "mounted"},
		{"echo x > /dev/null && echo ok", "ok"},
		// The pod's root can reach nothing of the host.
		{"echo 1 > /proc/sys/kernel/panic || echo refused", "refused"},
		{"mknod /null c 1 3 || echo refused", "refused"},
	})
	pid := initOf(t, b, pod.Container)
	var st syscall.Stat_t
	if err := syscall.Stat(fmt.Sprintf("/proc/%d/root/new", pid), &st); err != nil || st.Uid != usersRoot+1000 || st.Gid != usersRoot+1001 {
		t.Errorf("the container's file belongs to %d:%d on the host, %v", st.Uid, st.Gid, err)
	}
	cgroup, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil || !regexp.MustCompile(pod.Sandbox+`[^\n]*/[^\n]*`+pod.Container).Match(cgroup) {
		t.Errorf("the container's cgroup is not below its pod's: %s, %v", cgroup, err)
	}
	left := func() []string {
		found, err := filepath.Glob(filepath.Join(b.State, "images", "mapped", "*"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if len(left()) != 1 {
		t.Errorf("root filesystems: %q", left())
	}
	b.RemovePod(pod.Sandbox)
	if len(left()) != 0 {
		t.Errorf("root filesystems are left: %q", left())
	}
}

func usersOnHostNetwork(t *testing.T, b *harness.Berth) {
	pod := runPodWith(b, "users-host", "sleep 1000", inUsers(func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
		config.Hostname, config.Linux.SecurityContext.NamespaceOptions.Network = "", runtimeapi.NamespaceMode_NODE
		addCapabilities(container, "SYS_ADMIN", "NET_ADMIN")
	}))
	defer b.RemovePod(pod.Sandbox)
	host, err := b.InHost("readlink", "/proc/self/ns/net").Output()
	if err != nil {
		t.Fatal(err)
	}
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	wantOut(t, b, pod.Container, [][2]string{
		{"readlink /proc/self/ns/net", strings.TrimSpace(string(host))},
		{"cat /proc/self/uid_map", fmt.Sprint("0 ", usersRoot, " 65536")},
		{"ls -d /sys/kernel", "/sys/kernel"},
		{"hostname", name},
		{"ip link set lo mtu 1400 || echo refused", "refused"},
		{"hostname renamed || echo refused", "refused"},
		{"mount -o remount,rw /sys || echo refused", "refused"},
	})
	// Everything below the host's /sys is read-only, including other mounts there.
	for line := range strings.Lines(b.ExecOut(pod.Container, "cat /proc/self/mountinfo")) {
		if fields := strings.Fields(line); strings.HasPrefix(fields[4], "/sys") && !strings.HasPrefix(fields[5], "ro") && fields[4] != "/sys/fs/cgroup" {
			t.Errorf("it is writable: %s", line)
		}
	}
}

func usersShareProcesses(t *testing.T, b *harness.Berth) {
	config := b.Sandbox("users-shared")
	first := b.Container("first", "sleep 1111")
	inUsers(func(config *runtimeapi.PodSandboxConfig, _ *runtimeapi.ContainerConfig) {
		config.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	})(config, first)
	sandbox := b.RunSandbox(config)
	defer b.RemovePod(sandbox)
	second := b.Container("second", "sleep 2222")
	second.Linux.SecurityContext.NamespaceOptions = config.Linux.SecurityContext.NamespaceOptions
	for _, c := range []*runtimeapi.ContainerConfig{first, second} {
		b.StartContainer(b.Create(sandbox, c, config))
	}
	target := b.Container("debug", "sleep 3333")
	target.Linux.SecurityContext.NamespaceOptions = config.Linux.SecurityContext.NamespaceOptions
	debug := b.Create(sandbox, target, config)
	b.StartContainer(debug)
	wantOut(t, b, debug, [][2]string{
		{"cat /proc/1/cmdline | tr '\\0' ' '", "/pod-init pod-init"},
		{"grep Uid: /proc/1/status", "Uid: 65535 65535 65535 65535"},
		{"ps -o args | grep -c '^sleep [0-9]*'", "3"},
	})
}

func usersAndGroups(t *testing.T, b *harness.Berth) {
	pod := runPodWith(b, "users-groups", "id -u; id -g; id -G; sleep 1000", inUsers(func(_ *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
		security := container.Linux.SecurityContext
		security.RunAsUser = &runtimeapi.Int64Value{Value: 1000}
		security.SupplementalGroups = []int64{2000}
	}))
	defer b.RemovePod(pod.Sandbox)
	wantOut(t, b, pod.Container, [][2]string{
		{"id -u; id -g; id -G", "1000 1001 1001 1002 2000"},
		{"touch /tmp/mine && stat -c %u:%g /tmp/mine", "1000:1001"},
	})
	config := b.Sandbox("users-unmapped")
	container := b.Container("c", "true")
	inUsers(nil)(config, container)
	container.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: 65536}
	sandbox := b.RunSandbox(config)
	defer b.RemovePod(sandbox)
	_, err := b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: container, SandboxConfig: config})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "not mapped") {
		t.Errorf("a user who is not mapped: %v", err)
	}
}

// fewUsers: ten ids are enough, also for the init of the PID namespace.
func fewUsers(t *testing.T, b *harness.Berth) {
	few := []*runtimeapi.IDMapping{{HostId: 700000, Length: 10}}
	pod := runPodWith(b, "users-few", "sleep 1000", inUsers(func(config *runtimeapi.PodSandboxConfig, _ *runtimeapi.ContainerConfig) {
		options := config.Linux.SecurityContext.NamespaceOptions
		options.Pid = runtimeapi.NamespaceMode_POD
		options.UsernsOptions.Uids, options.UsernsOptions.Gids = few, few
	}))
	defer b.RemovePod(pod.Sandbox)
	wantOut(t, b, pod.Container, [][2]string{{"cat /proc/self/uid_map; grep Uid: /proc/1/status; stat -c %u /", "0 700000 10 Uid: 9 9 9 9 0"}})
}

// usersStreams: a user other than root can open its streams again, in the container and in an exec.
// A terminal belongs to the user.
func usersStreams(t *testing.T, b *harness.Berth) {
	asUser := func(_ *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
		container.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: 1000}
	}
	pod := runPodWith(b, "users-streams", "echo again > /dev/stdout; echo worse > /dev/stderr; sleep 1000", inUsers(asUser))
	defer b.RemovePod(pod.Sandbox)
	b.Await("both lines", func() bool {
		lines, err := harness.LogLines(pod.LogFile)
		return err == nil && len(lines) == 2 && lines[0]+lines[1] == "againworse"
	})
	wantOut(t, b, pod.Container, [][2]string{{"echo again > /dev/stdout", "again"}})
	if answer := b.Exec(pod.Container, "echo worse > /dev/stderr; exit 7"); string(answer.Stderr) != "worse\n" || answer.ExitCode != 7 {
		t.Errorf("exec: %v", answer)
	}
	tty := runPodWith(b, "users-tty", "tty; stat -c %u $(tty); sleep 1000", inUsers(func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
		asUser(config, container)
		container.Tty = true
	}))
	defer b.RemovePod(tty.Sandbox)
	b.Await("the terminal's name", func() bool {
		lines, err := harness.LogLines(tty.LogFile)
		return err == nil && strings.Join(strings.Fields(strings.Join(lines, " ")), " ") == "/dev/pts/0 1000"
	})
}

func usersPrivileged(t *testing.T, b *harness.Berth) {
	pod := runPodWith(b, "users-privileged", "sleep 1000", inUsers(func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
		config.Linux.SecurityContext.Privileged = true
		container.Linux.SecurityContext.Privileged = true
	}))
	defer b.RemovePod(pod.Sandbox)
	wantOut(t, b, pod.Container, [][2]string{
		{"cat /proc/self/uid_map", fmt.Sprint("0 ", usersRoot, " 65536")},
		{"mount -t tmpfs none /tmp && echo mounted", "mounted"},
		{"echo 1 > /proc/sys/kernel/panic || echo refused", "refused"},
		{"test -c /dev/kmsg && echo there", "there"},
	})
}

func usersDevices(t *testing.T, b *harness.Berth) {
	pod := runPodWith(b, "users-devices", "sleep 1000", inUsers(func(_ *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
		container.Devices = []*runtimeapi.Device{
			{HostPath: "/dev/zero", ContainerPath: "/dev/elsewhere/nought", Permissions: "r"},
			{HostPath: "/dev/kmsg", ContainerPath: "/dev/kmsg", Permissions: "rw"},
		}
	}))
	defer b.RemovePod(pod.Sandbox)
	wantOut(t, b, pod.Container, [][2]string{
		{"head -c 3 /dev/elsewhere/nought | wc -c", "3"},
		{"stat -c %t:%T /dev/elsewhere/nought /dev/kmsg", "1:5 1:b"},
	})
}

// usersSurvive: a daemon and a supervisor that restart after a kill find the pod again, run execs
// in it and remove it.
func usersSurvive(t *testing.T, b *harness.Berth) {
	pod := runPodWith(b, "users-survive", "sleep 1000", inUsers(func(config *runtimeapi.PodSandboxConfig, _ *runtimeapi.ContainerConfig) {
		config.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	}))
	pid := initOf(t, b, pod.Container)
	harness.Kill(t, b.SupervisorPid())
	b.KillDaemon()
	b.StartDaemon()
	if again := initOf(t, b, pod.Container); again != pid {
		t.Errorf("the init was %d and is %d", pid, again)
	}
	wantOut(t, b, pod.Container, [][2]string{{"echo x > /dev/stdout; stat -c %u /", "x 0"}})
	second := b.Container("second", "stat -c %u:%g / /etc/hosts; sleep 1000")
	second.Linux.SecurityContext.NamespaceOptions = pod.Config.Linux.SecurityContext.NamespaceOptions
	id := b.Create(pod.Sandbox, second, pod.Config)
	b.StartContainer(id)
	wantOut(t, b, id, [][2]string{{"readlink /proc/self/ns/user", b.ExecOut(pod.Container, "readlink /proc/self/ns/user")}})
	b.RemovePod(pod.Sandbox)
}

func usersOfTheNode(t *testing.T, b *harness.Berth) {
	pod := runPodWith(b, "users-node", "sleep 1000", func(config *runtimeapi.PodSandboxConfig, _ *runtimeapi.ContainerConfig) {
		config.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}
	})
	defer b.RemovePod(pod.Sandbox)
	host, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		t.Fatal(err)
	}
	wantOut(t, b, pod.Container, [][2]string{{"readlink /proc/self/ns/user", host}})
}

func wrongUsers(t *testing.T, b *harness.Berth) {
	for name, users := range map[string]*runtimeapi.UserNamespace{
		"two mappings": {Uids: append(idRange(1000), idRange(2000)...), Gids: append(idRange(1000), idRange(2000)...)},
		"no mapping":   {},
		"without 0":    {Uids: []*runtimeapi.IDMapping{{ContainerId: 1, HostId: 1000, Length: 10}}, Gids: idRange(1)},
		"empty range":  {Uids: []*runtimeapi.IDMapping{{HostId: 1000}}, Gids: idRange(1)},
		"CONTAINER":    {Mode: runtimeapi.NamespaceMode_CONTAINER},
		"TARGET":       {Mode: runtimeapi.NamespaceMode_TARGET},
		"NODE, mapped": {Mode: runtimeapi.NamespaceMode_NODE, Uids: idRange(1)},
	} {
		config := b.Sandbox("wrong")
		config.Linux.SecurityContext.NamespaceOptions.UsernsOptions = users
		_, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: config})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "userns_options") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func usersReported(t *testing.T, b *harness.Berth) {
	answer, err := b.Runtime.Status(b.Ctx(), &runtimeapi.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if !answer.RuntimeHandlers[0].Features.UserNamespaces || !answer.Features.UserNamespacesHostNetwork {
		t.Errorf("features: %v, %v", answer.RuntimeHandlers, answer.Features)
	}
}
