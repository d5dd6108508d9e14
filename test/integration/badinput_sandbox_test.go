//go:build integration

package integration

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type sandboxConfig = *runtimeapi.PodSandboxConfig

// huge is longer than any name may be. The error must not repeat all of it.
var huge = strings.Repeat("x", 1<<20)

func security(c sandboxConfig) *runtimeapi.LinuxSandboxSecurityContext {
	return c.Linux.SecurityContext
}

func TestBadSandboxesAreRefusedAndLeaveNothing(t *testing.T) {
	x := newTrial(t, harness.Options{})
	const invalid, unsupported = codes.InvalidArgument, codes.Unimplemented
	noHandler := invalid
	if x.Docker != nil { // it has none at all
		noHandler = unsupported
	}
	x.try(t, []attempt{
		{"no config", func() error {
			_, err := x.Runtime.RunPodSandbox(x.Ctx(), &runtimeapi.RunPodSandboxRequest{})
			return err
		}, invalid, []string{"config"}},
		{"unknown handler", func() error {
			_, err := x.Runtime.RunPodSandbox(x.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: x.Sandbox("bad"), RuntimeHandler: "kata"})
			return err
		}, noHandler, []string{"no runtime", "kata"}},
		{"larger than a request may be", func() error {
			config := x.Sandbox("bad")
			config.Annotations["big"] = strings.Repeat("x", 17<<20)
			_, err := x.Runtime.RunPodSandbox(x.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: config})
			return err
		}, codes.ResourceExhausted, []string{"larger than max"}},

		x.badSandbox("no metadata", invalid, func(c sandboxConfig) { c.Metadata = nil }, "metadata"),
		x.badSandbox("no name", invalid, func(c sandboxConfig) { c.Metadata.Name = "" }, "metadata.name"),
		x.badSandbox("no namespace", invalid, func(c sandboxConfig) { c.Metadata.Namespace = "" }, "metadata.namespace"),
		x.badSandbox("name of two lines", invalid, func(c sandboxConfig) { c.Metadata.Name = "a\nb" }, "metadata.name"),
		x.badSandbox("name that is a path", invalid, func(c sandboxConfig) { c.Metadata.Name = "../../etc" }, "metadata.name"),
		x.badSandbox("name with NUL", invalid, func(c sandboxConfig) { c.Metadata.Name = "a\x00b" }, "metadata.name"),
		x.badSandbox("huge name", invalid, func(c sandboxConfig) { c.Metadata.Name = huge }, "metadata.name"),
		x.badSandbox("namespace that is a path", invalid, func(c sandboxConfig) { c.Metadata.Namespace = ".." }, "metadata.namespace"),
		x.badSandbox("uid that forges CNI arguments", invalid, func(c sandboxConfig) { c.Metadata.Uid = "a;K8S_POD_NAME=b" }, "metadata.uid"),
		x.badSandbox("huge uid", invalid, func(c sandboxConfig) { c.Metadata.Uid = huge }, "metadata.uid"),

		x.badSandbox("hostname of two lines", invalid, func(c sandboxConfig) { c.Hostname = "a\n6.6.6.6 kubernetes" }, "hostname"),
		x.badSandbox("hostname with a space", invalid, func(c sandboxConfig) { c.Hostname = "a b" }, "hostname"),
		x.badSandbox("hostname with NUL", invalid, func(c sandboxConfig) { c.Hostname = "a\x00" }, "hostname"),
		x.badSandbox("hostname too long", invalid, func(c sandboxConfig) { c.Hostname = strings.Repeat("a", 65) }, "hostname"),
		x.badSandbox("another hostname for the host's network", invalid, func(c sandboxConfig) {
			c.Hostname, security(c).NamespaceOptions.Network = "elsewhere", runtimeapi.NamespaceMode_NODE
		}, "config.hostname", "elsewhere"),
		x.badSandbox("huge hostname", invalid, func(c sandboxConfig) { c.Hostname = huge }, "hostname"),
		x.badSandbox("DNS server of two lines", invalid, func(c sandboxConfig) { c.DnsConfig.Servers = []string{"1.1.1.1\nnameserver 6.6.6.6"} }, "dns_config.servers"),
		x.badSandbox("huge DNS server", invalid, func(c sandboxConfig) { c.DnsConfig.Servers = []string{huge + "\n"} }, "dns_config.servers"),
		x.badSandbox("DNS search of two words", invalid, func(c sandboxConfig) { c.DnsConfig.Searches = []string{"ok", "a b"} }, "dns_config.searches"),
		x.badSandbox("empty DNS option", invalid, func(c sandboxConfig) { c.DnsConfig.Options = []string{""} }, "dns_config.options"),
		x.badSandbox("DNS option with a carriage return", invalid, func(c sandboxConfig) { c.DnsConfig.Options = []string{"a\rb"} }, "dns_config.options"),
		x.badSandbox("annotation's key of two lines", invalid, func(c sandboxConfig) { c.Annotations["a\nb"] = "" }, "annotations"),
		x.badSandbox("huge key with a newline", invalid, func(c sandboxConfig) { c.Annotations[huge+"\n"] = "" }, "annotations"),
		x.badSandbox("annotation with NUL", invalid, func(c sandboxConfig) { c.Annotations["a"] = "b\x00" }, "annotations"),
		x.badSandbox("label without a key", invalid, func(c sandboxConfig) { c.Labels[""] = "b" }, "labels"),

		x.badSandbox("relative log directory", invalid, func(c sandboxConfig) { c.LogDirectory = "logs" }, "log_directory"),
		x.badSandbox("log directory that climbs", invalid, func(c sandboxConfig) { c.LogDirectory = "/var/log/../../etc" }, "log_directory"),
		x.badSandbox("log directory with NUL", invalid, func(c sandboxConfig) { c.LogDirectory = "/a\x00" }, "log_directory"),
		x.badSandbox("unknown protocol", invalid, func(c sandboxConfig) {
			c.PortMappings = []*runtimeapi.PortMapping{{Protocol: 9, ContainerPort: 1, HostPort: 1}}
		}, "port_mappings[0].protocol"),
		x.badSandbox("negative port", invalid, func(c sandboxConfig) {
			c.PortMappings = []*runtimeapi.PortMapping{{ContainerPort: 80, HostPort: -1}}
		}, "port_mappings[0].host_port"),
		x.badSandbox("port over 65535", invalid, func(c sandboxConfig) {
			c.PortMappings = []*runtimeapi.PortMapping{{ContainerPort: 65536, HostPort: 80}}
		}, "port_mappings[0].container_port"),
		x.badSandbox("host IP that is none", invalid, func(c sandboxConfig) {
			c.PortMappings = []*runtimeapi.PortMapping{{ContainerPort: 80, HostPort: 80, HostIp: "::g"}}
		}, "port_mappings[0].host_ip"),

		x.badSandbox("host IP of many hosts", invalid, func(c sandboxConfig) {
			c.PortMappings = []*runtimeapi.PortMapping{{ContainerPort: 80, HostPort: 80, HostIp: "ff02::1"}}
		}, "port_mappings[0].host_ip"),
		x.badSandbox("too many ports", invalid, func(c sandboxConfig) { c.PortMappings = make([]*runtimeapi.PortMapping, 70000) }, "port_mappings"),
		x.badSandbox("too many DNS servers", invalid, func(c sandboxConfig) {
			c.DnsConfig.Servers = slices.Repeat([]string{"192.0.2.53"}, 2000)
		}, "dns_config.servers"),
		x.badSandbox("huge DNS search", invalid, func(c sandboxConfig) { c.DnsConfig.Searches = []string{huge} }, "dns_config.searches[0]"),
		x.badSandbox("huge log directory", invalid, func(c sandboxConfig) { c.LogDirectory = "/" + huge }, "log_directory"),
		x.badSandbox("huge cgroup parent", invalid, func(c sandboxConfig) { c.Linux.CgroupParent = "/" + huge }, "cgroup_parent"),
		x.badSandbox("cgroup parent that climbs", invalid, func(c sandboxConfig) { c.Linux.CgroupParent = "/a/../../b" }, "cgroup_parent"),
		x.badSandbox("cgroup parent of another form", invalid, func(c sandboxConfig) { c.Linux.CgroupParent = "a:b:c" }, "cgroup_parent"),
		x.badSandbox("sysctl of the host", invalid, func(c sandboxConfig) { c.Linux.Sysctls = map[string]string{"kernel.panic": "1"} }, "kernel.panic"),
		x.badSandbox("sysctl that climbs", invalid, func(c sandboxConfig) { c.Linux.Sysctls = map[string]string{"net/../kernel/panic": "1"} }, "sysctls"),
		x.badSandbox("sysctl that is not there", invalid, func(c sandboxConfig) { c.Linux.Sysctls = map[string]string{"net.no.such": "1"} }, "net/no/such"),
		x.badSandbox("sysctl's value that the kernel refuses", invalid, func(c sandboxConfig) {
			c.Linux.Sysctls = map[string]string{"net.ipv4.ip_local_port_range": "nonsense"}
		}, "net/ipv4/ip_local_port_range", "nonsense"),
		x.badSandbox("sysctl that is a directory", invalid, func(c sandboxConfig) { c.Linux.Sysctls = map[string]string{"net.ipv4": "1"} }, "net.ipv4"),
		x.badSandbox("sysctl that nobody writes", invalid, func(c sandboxConfig) {
			c.Linux.Sysctls = map[string]string{"net.netfilter.nf_conntrack_count": "1"}
		}, "net.netfilter.nf_conntrack_count"),
		x.badSandbox("huge sysctl", invalid, func(c sandboxConfig) { c.Linux.Sysctls = map[string]string{"net." + huge: "1"} }, "sysctls"),
		x.badSandbox("sysctl under two names", invalid, func(c sandboxConfig) {
			c.Linux.Sysctls = map[string]string{"net.ipv4.ip_forward": "0", "net/ipv4/ip_forward": "1"}
		}, "net/ipv4/ip_forward"),
		x.badSandbox("sysctl of two lines", invalid, func(c sandboxConfig) {
			c.Linux.Sysctls = map[string]string{"net.ipv4.ip_forward": "1\n0"}
		}, "net.ipv4.ip_forward"),

		x.badSandbox("unknown network mode", invalid, func(c sandboxConfig) { security(c).NamespaceOptions.Network = 99 }, "namespace_options.network"),
		x.badSandbox("unknown PID mode", invalid, func(c sandboxConfig) { security(c).NamespaceOptions.Pid = -1 }, "namespace_options.pid"),
		x.badSandbox("network of its container", unsupported, func(c sandboxConfig) {
			security(c).NamespaceOptions.Network = runtimeapi.NamespaceMode_CONTAINER
		}, "namespace_options.network"),
		x.badSandbox("IPC of its container", unsupported, func(c sandboxConfig) {
			security(c).NamespaceOptions.Ipc = runtimeapi.NamespaceMode_CONTAINER
		}, "namespace_options.ipc"),
		x.badSandbox("PIDs of a target", invalid, func(c sandboxConfig) {
			security(c).NamespaceOptions.Pid = runtimeapi.NamespaceMode_TARGET
		}, "namespace_options.pid"),
		x.badSandbox("user namespace without mappings", invalid, func(c sandboxConfig) {
			security(c).NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD}
		}, "userns_options"),
		x.badSandbox("user that is negative", invalid, func(c sandboxConfig) { security(c).RunAsUser = &runtimeapi.Int64Value{Value: -1} }, "run_as_user"),
		x.badSandbox("user over 2^31", invalid, func(c sandboxConfig) { security(c).RunAsUser = &runtimeapi.Int64Value{Value: 1 << 32} }, "run_as_user"),
		x.badSandbox("group without a user", invalid, func(c sandboxConfig) { security(c).RunAsGroup = &runtimeapi.Int64Value{Value: 1} }, "run_as_group"),
		x.badSandbox("supplemental group over 2^31", invalid, func(c sandboxConfig) { security(c).SupplementalGroups = []int64{1 << 31} }, "supplemental_groups[0]"),
		x.badSandbox("too many supplemental groups", invalid, func(c sandboxConfig) { security(c).SupplementalGroups = make([]int64, 65537) }, "supplemental_groups"),
		x.badSandbox("unknown groups policy", invalid, func(c sandboxConfig) { security(c).SupplementalGroupsPolicy = 7 }, "supplemental_groups_policy"),
		x.badSandbox("SELinux", unsupported, func(c sandboxConfig) { security(c).SelinuxOptions = &runtimeapi.SELinuxOption{Type: "t"} }, "selinux_options"),
		x.badSandbox("AppArmor profile", apparmorCode(), func(c sandboxConfig) {
			security(c).Apparmor = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "p"}
		}, "apparmor"),
		x.badSandbox("unknown seccomp type", invalid, func(c sandboxConfig) { security(c).Seccomp.ProfileType = 5 }, "seccomp.profile_type"),
		x.badSandbox("relative seccomp profile", invalid, func(c sandboxConfig) {
			security(c).Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "p.json"}
		}, "seccomp.localhost_ref"),
		x.badSandbox("huge seccomp profile's name", invalid, func(c sandboxConfig) {
			security(c).Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/" + huge}
		}, "seccomp.localhost_ref"),
		x.badSandbox("huge shares", invalid, func(c sandboxConfig) {
			c.Linux.Resources = &runtimeapi.LinuxContainerResources{CpuShares: 1 << 40}
		}, "linux.resources.cpu_shares"),
		x.badSandbox("negative overhead", invalid, func(c sandboxConfig) {
			c.Linux.Overhead = &runtimeapi.LinuxContainerResources{CpuShares: -1}
		}, "linux.overhead.cpu_shares"),
		x.badSandbox("resources out of range", invalid, func(c sandboxConfig) {
			c.Linux.Resources = &runtimeapi.LinuxContainerResources{OomScoreAdj: 1001}
		}, "linux.resources.oom_score_adj"),
		x.badSandbox("Windows", unsupported, func(c sandboxConfig) { c.Windows = &runtimeapi.WindowsPodSandboxConfig{} }, "windows"),
	})
}

func TestBadHostPortsAreRefusedByName(t *testing.T) {
	x := newTrial(t, harness.Options{})
	port := func(host int32) []*runtimeapi.PortMapping {
		return []*runtimeapi.PortMapping{{ContainerPort: 80, HostPort: host}}
	}
	owner := x.Sandbox("owner")
	owner.PortMappings = port(18081)
	x.RunSandbox(owner)
	// A program of the host uses the other port.
	listener := x.InHost("busybox", "nc", "-l", "-p", "18082")
	if err := listener.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = listener.Process.Kill()
		_ = listener.Wait()
	}()
	x.Await("the listener", func() bool {
		out, err := x.InHost("ss", "-Hltn", "sport = :18082").Output()
		return err == nil && len(out) > 0
	})
	x.ground = x.StillGround()
	x.try(t, []attempt{
		x.badSandbox("of another pod", codes.AlreadyExists, func(c sandboxConfig) { c.PortMappings = port(18081) }, "18081", "owner"),
		x.badSandbox("of a program", codes.AlreadyExists, func(c sandboxConfig) { c.PortMappings = port(18082) }, "18082"),
		x.badSandbox("twice in one pod", codes.InvalidArgument, func(c sandboxConfig) {
			c.PortMappings = append(port(18083), port(18083)...)
		}, "18083"),
	})
}

func TestSameNameWithAnotherConfigNamesTheField(t *testing.T) {
	x := newTrial(t, harness.Options{})
	exists := codes.AlreadyExists
	again := func(name string, change func(sandboxConfig), words ...string) attempt {
		return attempt{name, func() error {
			config := x.Sandbox("good")
			change(config)
			_, err := x.Runtime.RunPodSandbox(x.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: config})
			return err
		}, exists, append(words, x.pod.Sandbox)}
	}
	container := func(name string, change func(*runtimeapi.ContainerConfig), words ...string) attempt {
		return attempt{name, func() error {
			config := x.Container("c", "sleep 100000")
			change(config)
			_, err := x.Runtime.CreateContainer(x.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: x.pod.Sandbox, Config: config, SandboxConfig: x.pod.Config})
			return err
		}, exists, append(words, x.pod.Container)}
	}
	x.try(t, []attempt{
		again("hostname", func(c sandboxConfig) { c.Hostname = "other" }, "config.hostname"),
		again("label", func(c sandboxConfig) { c.Labels["app"] = "other" }, `config.labels["app"]`),
		again("DNS server", func(c sandboxConfig) { c.DnsConfig.Servers[0] = "192.0.2.54" }, "config.dns_config.servers[0]"),
		again("namespace mode", func(c sandboxConfig) { security(c).NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE },
			"config.linux.security_context.namespace_options.network"),
		container("command", func(c *runtimeapi.ContainerConfig) { c.Command[2] = "other" }, "config.command[2]"),
		container("environment", func(c *runtimeapi.ContainerConfig) { c.Envs = []*runtimeapi.KeyValue{{Key: "A"}} }, "config.envs"),
		container("nothing, but it runs", func(*runtimeapi.ContainerConfig) {}, "running"),
	})
	// The same request is a retry with the same answer, as long as nobody uses the sandbox.
	x.try(t, []attempt{again("nothing, but it has a container", func(sandboxConfig) {}, x.pod.Container)})
	if _, err := x.Runtime.RemoveContainer(x.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: x.pod.Container}); err != nil {
		t.Fatal(err)
	}
	if id := x.RunSandbox(x.Sandbox("good")); id != x.pod.Sandbox {
		t.Errorf("a retry answered %s, want %s", id, x.pod.Sandbox)
	}
}

// Newlines are valid if the file format allows them.
func TestNewlinesInValuesStayInTheirValues(t *testing.T) {
	x := newTrial(t, harness.Options{})
	config := x.Sandbox("lines")
	config.Annotations["note"] = "one\ntwo\r\n\"three\" \x1b[31m"
	config.Labels["note"] = "a\nb"
	sandbox := x.RunSandbox(config)
	container := x.Container("c", "env; sleep 1000")
	container.Envs = []*runtimeapi.KeyValue{{Key: "TEXT", Value: []byte("one\nROOT=1")}}
	container.Annotations = map[string]string{"k": "v\nw"}
	id := x.Create(sandbox, container, config)
	x.StartContainer(id)
	if got := x.SandboxStatus(sandbox).Annotations["note"]; got != config.Annotations["note"] {
		t.Errorf("annotation %q", got)
	}
	if got := x.ExecOut(id, `tr '\0' '|' < /proc/1/environ`); !strings.Contains(got, "TEXT=one\nROOT=1|") {
		t.Errorf("environment %q", got)
	}
	for file, want := range map[string]string{"/etc/hostname": "lines", "/etc/resolv.conf": "search default.svc\nnameserver 192.0.2.53"} {
		if got := strings.TrimSpace(x.ExecOut(id, "cat "+file)); got != want {
			t.Errorf("%s is %q, want %q", file, got, want)
		}
	}
	x.RemovePod(sandbox)
	x.nothingLeft(t)
}

func TestLargeListsAreTaken(t *testing.T) {
	x := newTrial(t, harness.Options{})
	config := x.Sandbox("large")
	for i := range 20000 {
		config.Labels[fmt.Sprintf("label-%d", i)] = strings.Repeat("v", 63)
	}
	config.Annotations["big"] = strings.Repeat("x", 256<<10)
	sandbox := x.RunSandbox(config)
	container := x.Container("c", "sleep 1000")
	for i := range 5000 {
		container.Envs = append(container.Envs, &runtimeapi.KeyValue{Key: fmt.Sprintf("SERVICE_%d", i), Value: []byte("tcp://192.0.2.1:80")})
	}
	id := x.Create(sandbox, container, config)
	x.StartContainer(id)
	if got := x.ExecOut(id, `tr '\0' '\n' < /proc/1/environ | grep -c ^SERVICE_`); got != "5000" {
		t.Errorf("%s variables, want 5000", got)
	}
	if got := len(x.SandboxStatus(sandbox).Labels); got != 20001 {
		t.Errorf("%d labels, want 20001", got)
	}
	x.RemovePod(sandbox)
	x.nothingLeft(t)
}

// A client speaks another protocol on the socket.
func TestGarbageOnTheSocketIsDropped(t *testing.T) {
	x := newTrial(t, harness.Options{})
	for _, garbage := range []string{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", strings.Repeat("\x00", 1<<16), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + strings.Repeat("\xff", 1<<12)} {
		conn, err := net.Dial("unix", x.Socket)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write([]byte(garbage)) // the daemon may close the connection in the middle of it
		conn.Close()
	}
	x.nothingLeft(t)
	if _, err := os.Stat(filepath.Join(x.Root, "pods", "quarantine")); err == nil {
		t.Error("a quarantine was made")
	}
}
