//go:build integration

package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestFieldMounts: the rows about mounts of ContainerConfig, and about files and settings that a
// container has of its own.
func TestFieldMounts(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	for _, c := range []struct {
		name string
		test func(*testing.T, *harness.Berth)
	}{
		{"mounts.readonly/host/container", hostPaths},
		{"mounts.propagation", propagation},
		{"mounts.recursive_read_only", recursiveReadOnly},
		{"mounts.uid/gidMappings (idmap)", mappedVolumes},
		{"mounts.mount_options (noexec/nodev/nosuid)", mountOptions},
		{"paths masked and read-only, in user namespaces too", procMount},
		{"a root that is read-only, in user namespaces too", readonlyRootfs},
		{"hostname", hostnames},
		{"sysctls", sysctls},
		{"shm of the pod", sharedMemory},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer func(parent testing.TB) { b.T = parent }(b.T)
			b.T = t
			c.test(t, b)
		})
	}
}

// volume creates a directory of the host with a tmpfs below it.
func volume(t *testing.T, b *harness.Berth, flags uintptr) string {
	t.Helper()
	dir := filepath.Join(b.Dir, "volume-"+strings.NewReplacer("/", "-", "(", "", ")", "").Replace(t.Name()))
	sub := filepath.Join(dir, "sub")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("volume", dir, "tmpfs", 0, "mode=777"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, path := range []string{sub, dir} {
			if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}
	})
	if err := unix.Mount("", dir, "", flags, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("sub", sub, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	return dir
}

func withMount(m *runtimeapi.Mount) podChange {
	return func(_ *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
		container.Mounts = append(container.Mounts, m)
	}
}

func hostPaths(t *testing.T, b *harness.Berth) {
	dir := volume(t, b, unix.MS_PRIVATE)
	link := filepath.Join(b.Dir, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(b.Dir, "missing", "deep")
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	pod := runPodWith(b, "paths", "sleep 1000", func(_ *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
		container.Mounts = []*runtimeapi.Mount{
			{HostPath: link, ContainerPath: "/a/b/c"},
			{HostPath: link, ContainerPath: "/ro", Readonly: true},
			{HostPath: missing, ContainerPath: "/made"},
			{HostPath: file, ContainerPath: "/file", Readonly: true},
		}
	})
	defer b.RemovePod(pod.Sandbox)
	wantOut(t, b, pod.Container, [][2]string{
		{"cat /a/b/c/file /ro/file /file", "texttexttext"},
		{"touch /a/b/c/new && ls /ro", "file new sub"},
		{"touch /ro/x 2>&1", "touch: /ro/x: Read-only file system"},
		{"(echo x > /file) 2>/dev/null || echo refused", "refused"},
		{"touch /made/x && echo made", "made"},
		// The mount is read-only, and not the mounts below it; see recursive_read_only.
		{"touch /ro/sub/x && echo below", "below"},
	})
	if _, err := os.Stat(filepath.Join(missing, "x")); err != nil {
		t.Errorf("the missing host path: %v", err)
	}
}

func propagation(t *testing.T, b *harness.Berth) {
	shared, private := volume(t, b, unix.MS_SHARED), filepath.Join(b.Dir, "private")
	if err := os.Mkdir(private, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("private", private, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(private, unix.MNT_DETACH)
	if err := unix.Mount("", private, "", unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	both := runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
	in := runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
	pod := runPodWith(b, "propagation", "sleep 1000", func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
		config.Linux.SecurityContext.Privileged = true
		container.Linux.SecurityContext.Privileged = true
		container.Mounts = []*runtimeapi.Mount{
			{HostPath: shared, ContainerPath: "/both", Propagation: both},
			{HostPath: shared, ContainerPath: "/in", Propagation: in},
			{HostPath: shared, ContainerPath: "/none"},
		}
	})
	defer b.RemovePod(pod.Sandbox)
	for _, name := range []string{"inside", "outside"} {
		if err := os.Mkdir(filepath.Join(shared, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("outside", filepath.Join(shared, "outside"), "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(filepath.Join(shared, "outside"), unix.MNT_DETACH)
	wantOut(t, b, pod.Container, [][2]string{
		{"mount -t tmpfs inside /both/inside && echo mounted", "mounted"},
		{"awk '$5 ~ \"/outside$\" {print $5}' /proc/self/mountinfo | sort", "/both/outside /in/outside"},
		{"awk '$5 ~ \"/inside$\" {print $5}' /proc/self/mountinfo | sort", "/both/inside /in/inside"},
	})
	if got := mountsMatching(t, func(path string) bool { return path == filepath.Join(shared, "inside") }); len(got) != 1 {
		t.Errorf("the container's mount on the host: %q", got)
	}
	wantOut(t, b, pod.Container, [][2]string{{"umount /both/inside && echo gone", "gone"}})
	for mode, words := range map[runtimeapi.MountPropagation]string{both: "not a shared mount", in: "not a shared or slave mount"} {
		container := b.Container("wrong", "true")
		container.Mounts = []*runtimeapi.Mount{{HostPath: private, ContainerPath: "/m", Propagation: mode}}
		_, err := b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod.Sandbox, Config: container, SandboxConfig: pod.Config})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), words) || !strings.Contains(err.Error(), "mounts[0].propagation") {
			t.Errorf("%s of a private mount: %v", mode, err)
		}
	}
}

func recursiveReadOnly(t *testing.T, b *harness.Berth) {
	dir := volume(t, b, unix.MS_PRIVATE)
	readOnly := withMount(&runtimeapi.Mount{HostPath: dir, ContainerPath: "/m", Readonly: true, RecursiveReadOnly: true})
	if engineRefuses(t, b, translate.RecursiveReadOnly, readOnly, "config.mounts[0].recursive_read_only") {
		return
	}
	for name, change := range honoured(b, map[string]podChange{"rro": nil, "rro-users": inUsers(nil)}) {
		pod := runPodWith(b, name, "sleep 1000", func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
			if change != nil {
				change(config, container)
			}
			readOnly(config, container)
		})
		wantOut(t, b, pod.Container, [][2]string{
			{"touch /m/x 2>&1", "touch: /m/x: Read-only file system"},
			{"touch /m/sub/x 2>&1", "touch: /m/sub/x: Read-only file system"},
		})
		b.RemovePod(pod.Sandbox)
	}
	answer, err := b.Runtime.Status(b.Ctx(), &runtimeapi.StatusRequest{})
	if err != nil || !answer.RuntimeHandlers[0].Features.RecursiveReadOnlyMounts {
		t.Errorf("Status: %v, %v", answer, err)
	}
}

// mappedVolumes: the pod's root owns what the host's root owns in a volume. What it writes there
// belongs to the host's root.
func mappedVolumes(t *testing.T, b *harness.Berth) {
	dir := filepath.Join(b.Dir, "mapped")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	mapped := &runtimeapi.Mount{HostPath: dir, ContainerPath: "/mapped", UidMappings: idRange(usersRoot), GidMappings: idRange(usersRoot)}
	if engineRefuses(t, b, translate.MappedMounts, withMount(mapped), "config.mounts[0].uidMappings") {
		return
	}
	other := []*runtimeapi.IDMapping{{HostId: usersRoot + 7, Length: 100}}
	pod := runPodWith(b, "mapped", "sleep 1000", inUsers(func(_ *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
		container.Mounts = []*runtimeapi.Mount{
			mapped,
			{HostPath: dir, ContainerPath: "/plain"},
			{HostPath: dir, ContainerPath: "/other", UidMappings: other, GidMappings: other},
		}
	}))
	defer b.RemovePod(pod.Sandbox)
	wantOut(t, b, pod.Container, [][2]string{
		{"stat -c %u:%g /mapped/file /plain/file /other/file", "0:0 65534:65534 7:7"},
		{"touch /mapped/new && chown 1000:1001 /mapped/new && stat -c %u:%g /mapped/new", "1000:1001"},
		{"touch /plain/x 2>/dev/null || echo refused", "refused"},
	})
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "new"), &st); err != nil || st.Uid != 1000 || st.Gid != 1001 {
		t.Errorf("the volume's new file belongs to %d:%d, %v", st.Uid, st.Gid, err)
	}
	// berth does not mount a file system that cannot map ids without the mapping.
	config := b.Sandbox("mapped-proc")
	container := b.Container("c", "true")
	inUsers(withMount(&runtimeapi.Mount{HostPath: "/proc/self/net", ContainerPath: "/m", UidMappings: idRange(usersRoot), GidMappings: idRange(usersRoot)}))(config, container)
	sandbox := b.RunSandbox(config)
	defer b.RemovePod(sandbox)
	_, err := b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: container, SandboxConfig: config})
	if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "mounts[0]") {
		t.Errorf("a file system that cannot map ids: %v", err)
	}
}

func mountOptions(t *testing.T, b *harness.Berth) {
	dir := volume(t, b, unix.MS_PRIVATE)
	bound := withMount(&runtimeapi.Mount{HostPath: dir, ContainerPath: "/bound", MountOptions: []string{"noexec", "nodev", "nosuid"}})
	if engineRefuses(t, b, translate.MountOptions, bound, "config.mounts[0].mount_options") {
		return
	}
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho ran\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	// A device node that exists on any host: (1, 3) is null.
	if err := unix.Mknod(filepath.Join(dir, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatal(err)
	}
	for name, change := range honoured(b, map[string]podChange{"options": nil, "options-users": inUsers(nil)}) {
		pod := runPodWith(b, name, "sleep 1000", func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
			if change != nil {
				change(config, container)
			}
			withMount(&runtimeapi.Mount{HostPath: dir, ContainerPath: "/free"})(config, container)
			bound(config, container)
		})
		wantOut(t, b, pod.Container, [][2]string{
			{"/free/script", "ran"},
			{"/bound/script 2>/dev/null || echo refused", "refused"},
			{"(echo x > /bound/null) 2>/dev/null || echo refused", "refused"},
			{"awk '$5 == \"/bound\" {print $6}' /proc/self/mountinfo", "rw,nosuid,nodev,noexec,relatime"},
			{"touch /bound/$HOSTNAME && echo written", "written"},
		})
		b.RemovePod(pod.Sandbox)
	}
	answer, err := b.Runtime.Status(b.Ctx(), &runtimeapi.StatusRequest{})
	if err != nil || !answer.Features.MountOptions {
		t.Errorf("Status: %v, %v", answer, err)
	}
}

func procMount(t *testing.T, b *harness.Berth) {
	mask := func(_ *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
		container.Linux.SecurityContext.MaskedPaths = []string{"/proc/keys", "/proc/acpi", "/proc/timer_list", "/proc/absent"}
		container.Linux.SecurityContext.ReadonlyPaths = []string{"/proc/sys", "/proc/irq", "/proc/absent"}
	}
	for name, change := range honoured(b, map[string]podChange{"masked": mask, "masked-users": inUsers(mask)}) {
		pod := runPodWith(b, name, "sleep 1000", change)
		wantOut(t, b, pod.Container, [][2]string{
			{"cat /proc/keys /proc/timer_list", ""},
			{"awk '$5 == \"/proc/sys\" {print $6}' /proc/self/mountinfo", "ro,nosuid,nodev,noexec,relatime"},
		})
		b.RemovePod(pod.Sandbox)
	}
	if b.Refuses(translate.UserNamespaces) != nil {
		return
	}
	// procMount: Unmasked, which Kubernetes allows with a user namespace.
	pod := runPodWith(b, "unmasked", "sleep 1000", inUsers(func(_ *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
		addCapabilities(container, "SYS_ADMIN")
		mayMount(container)
	}))
	defer b.RemovePod(pod.Sandbox)
	wantOut(t, b, pod.Container, [][2]string{
		{"grep -c ' /proc/' /proc/self/mountinfo", "0"},
		{"mkdir /inner && mount -t proc proc /inner && test -d /inner/1 && echo nested", "nested"},
	})
}

func readonlyRootfs(t *testing.T, b *harness.Berth) {
	for name, change := range honoured(b, map[string]podChange{"ro": nil, "ro-users": inUsers(nil)}) {
		pod := runPodWith(b, name, "sleep 1000", func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
			if change != nil {
				change(config, container)
			}
			container.Linux.SecurityContext.ReadonlyRootfs = true
			// berth creates the mount points in any case.
			withMount(&runtimeapi.Mount{HostPath: b.Dir, ContainerPath: "/deep/m"})(config, container)
		})
		wantOut(t, b, pod.Container, [][2]string{
			{"touch /x 2>&1", "touch: /x: Read-only file system"},
			{"(echo x > /etc/hosts) 2>/dev/null || echo refused", "refused"},
			{"touch /dev/shm/x && echo shm", "shm"},
		})
		b.RemovePod(pod.Sandbox)
	}
}

func hostnames(t *testing.T, b *harness.Berth) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	onHost := func(config *runtimeapi.PodSandboxConfig, _ *runtimeapi.ContainerConfig) {
		config.Hostname = ""
		config.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
	}
	unnamed := func(config *runtimeapi.PodSandboxConfig, _ *runtimeapi.ContainerConfig) { config.Hostname = "" }
	named := func(*runtimeapi.PodSandboxConfig, *runtimeapi.ContainerConfig) {}
	for want, change := range map[string]podChange{"named": named, host: unnamed, host + " ": onHost} {
		want = strings.TrimSpace(want)
		pod := runPodWith(b, "named", "sleep 1000", change)
		wantOut(t, b, pod.Container, [][2]string{{"hostname; cat /etc/hostname; echo $HOSTNAME", strings.Join([]string{want, want, want}, " ")}})
		b.RemovePod(pod.Sandbox)
	}
	// The host's name does not change, and berth does not ignore another one silently.
	config := b.Sandbox("foreign")
	onHost(config, nil)
	config.Hostname = "foreign"
	_, err = b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: config})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "config.hostname") {
		t.Errorf("another name in the host's network: %v", err)
	}
	config.Hostname = host
	b.RemovePod(b.RunSandbox(config))
}

func sysctls(t *testing.T, b *harness.Berth) {
	all := map[string]string{
		"net.ipv4.ip_unprivileged_port_start": "80", "net/ipv4/conf/all/forwarding": "1", "kernel.shm_rmid_forced": "1",
		"kernel.msgmax": "9000", "kernel.sem": "250 32000 100 129", "fs.mqueue.msg_max": "20",
	}
	set := func(config *runtimeapi.PodSandboxConfig, _ *runtimeapi.ContainerConfig) { config.Linux.Sysctls = all }
	for name, change := range honoured(b, map[string]podChange{"sysctls": set, "sysctls-users": inUsers(set)}) {
		pod := runPodWith(b, name, "sleep 1000", change)
		wantOut(t, b, pod.Container, [][2]string{
			{"cd /proc/sys; cat net/ipv4/ip_unprivileged_port_start net/ipv4/conf/all/forwarding kernel/shm_rmid_forced kernel/msgmax kernel/sem fs/mqueue/msg_max", "80 1 1 9000 250 32000 100 129 20"},
			{"cat /proc/sys/net/ipv4/ping_group_range | tr '\\t' ' '", pingRange(name)},
		})
		b.RemovePod(pod.Sandbox)
	}
	if b.Refuses(translate.UserNamespaces) == nil {
		config := b.Sandbox("wrong")
		inUsers(nil)(config, b.Container("c", "true"))
		config.Linux.Sysctls = map[string]string{"net.ipv4.ping_group_range": "0 2147483647"}
		_, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: config})
		checkRefusal(t, err, codes.InvalidArgument, []string{"ping_group_range"})
	}
	node := func(change func(*runtimeapi.NamespaceOption)) func(*runtimeapi.PodSandboxConfig) {
		return func(config *runtimeapi.PodSandboxConfig) { change(config.Linux.SecurityContext.NamespaceOptions) }
	}
	for name, c := range map[string]struct {
		sysctl string
		change func(*runtimeapi.PodSandboxConfig)
	}{
		"the node's":          {"kernel.panic", node(func(*runtimeapi.NamespaceOption) {})},
		"the host's network":  {"net.ipv4.ip_forward", node(func(o *runtimeapi.NamespaceOption) { o.Network = runtimeapi.NamespaceMode_NODE })},
		"the host's IPC":      {"kernel.shmmax", node(func(o *runtimeapi.NamespaceOption) { o.Ipc = runtimeapi.NamespaceMode_NODE })},
		"one that is nowhere": {"net.ipv4.no_such_thing", node(func(*runtimeapi.NamespaceOption) {})},
	} {
		config := b.Sandbox("wrong")
		config.Linux.Sysctls = map[string]string{c.sysctl: "1"}
		c.change(config)
		_, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: config})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(strings.ReplaceAll(err.Error(), "/", "."), c.sysctl) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// pingRange returns the groups that may ping, as a pod sees them: all groups of the pod.
func pingRange(pod string) string {
	if strings.HasSuffix(pod, "-users") {
		return "0 65535"
	}
	return "0 2147483647"
}

// sharedMemory: all containers of a pod share a /dev/shm of 64 MiB. With the host's IPC it is the
// host's.
func sharedMemory(t *testing.T, b *harness.Berth) {
	require.Root(t)
	for name, change := range honoured(b, map[string]podChange{"shm": func(*runtimeapi.PodSandboxConfig, *runtimeapi.ContainerConfig) {}, "shm-users": inUsers(nil)}) {
		pod := runPodWith(b, name, "sleep 1000", change)
		second := b.Container("second", "sleep 1000")
		second.Linux.SecurityContext.NamespaceOptions = pod.Config.Linux.SecurityContext.NamespaceOptions
		other := b.Create(pod.Sandbox, second, pod.Config)
		b.StartContainer(other)
		wantOut(t, b, pod.Container, [][2]string{
			{"echo shared > /dev/shm/x; df -k /dev/shm | awk 'NR == 2 {print $2}'", "65536"},
			{"head -c 70000000 /dev/zero > /dev/shm/full 2>/dev/null || echo full; rm /dev/shm/full", "full"},
			{"stat -c %a /dev/shm", "1777"},
		})
		wantOut(t, b, other, [][2]string{{"cat /dev/shm/x", "shared"}, {"readlink /proc/self/ns/ipc", b.ExecOut(pod.Container, "readlink /proc/self/ns/ipc")}})
		b.RemovePod(pod.Sandbox)
	}
	pod := runPodWith(b, "shm-host", "sleep 1000", func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
		config.Linux.SecurityContext.NamespaceOptions.Ipc = runtimeapi.NamespaceMode_NODE
		container.Linux.SecurityContext.NamespaceOptions.Ipc = runtimeapi.NamespaceMode_NODE
	})
	defer b.RemovePod(pod.Sandbox)
	host, err := os.Readlink("/proc/self/ns/ipc")
	if err != nil {
		t.Fatal(err)
	}
	wantOut(t, b, pod.Container, [][2]string{{"readlink /proc/self/ns/ipc", host}})
}
