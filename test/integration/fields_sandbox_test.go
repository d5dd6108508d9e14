//go:build integration

package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/harness"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestFieldsOfSandboxes: each field of a sandbox's configuration, as a container in it sees it.
func TestFieldsOfSandboxes(t *testing.T) {
	f := newFields(t, harness.Options{}, nil)
	f.try(t, "metadata{name,uid,namespace,attempt}", func(t *testing.T) {
		f.pod(func(c *runtimeapi.PodSandboxConfig) {
			c.Metadata = &runtimeapi.PodSandboxMetadata{Name: "n.1", Uid: "u-1", Namespace: "space", Attempt: 3}
		})
		if diff := cmp.Diff(f.config.Metadata, f.SandboxStatus(f.sandbox).Metadata, protocmp.Transform()); diff != "" {
			t.Errorf("status (-want +got):\n%s", diff)
		}
		// These fields are the sandbox's name: equal ones identify the same sandbox, any difference
		// another one.
		want(t, "the same again", f.RunSandbox(f.config), f.sandbox)
		for _, change := range []func(*runtimeapi.PodSandboxMetadata){
			func(m *runtimeapi.PodSandboxMetadata) { m.Name = "n.2" }, func(m *runtimeapi.PodSandboxMetadata) { m.Uid = "u-2" },
			func(m *runtimeapi.PodSandboxMetadata) { m.Namespace = "other" }, func(m *runtimeapi.PodSandboxMetadata) { m.Attempt = 4 },
		} {
			config := proto.CloneOf(f.config)
			change(config.Metadata)
			if f.RunSandbox(config) == f.sandbox {
				t.Errorf("%v is the same sandbox as %v", config.Metadata, f.config.Metadata)
			}
		}
	})
	f.try(t, "log_directory", func(t *testing.T) {
		f.pod(func(c *runtimeapi.PodSandboxConfig) { c.LogDirectory = filepath.Join(f.Logs, "not", "there yet") })
		id := f.create("echo logged", func(c containerConfig) { c.LogPath = "0.log" })
		f.StartContainer(id)
		f.AwaitExit(id)
		lines, err := harness.LogLines(filepath.Join(f.config.LogDirectory, "0.log"))
		if err != nil || strings.Join(lines, "") != "logged" {
			t.Errorf("%q, %v", lines, err)
		}
	})
	f.try(t, "dns_config", func(t *testing.T) {
		f.pod(func(c *runtimeapi.PodSandboxConfig) {
			c.DnsConfig = &runtimeapi.DNSConfig{Servers: []string{"192.0.2.7"}, Searches: []string{"a.test"}, Options: []string{"ndots:4"}}
		})
		want(t, "resolv.conf", f.says(t, "cat /etc/resolv.conf", nil), "search a.test options ndots:4 nameserver 192.0.2.7")
	})
	f.try(t, "port_mappings{proto,ports,host_ip}", func(t *testing.T) { f.testPorts(t) })
	f.try(t, "labels / annotations", func(t *testing.T) {
		f.pod(func(c *runtimeapi.PodSandboxConfig) {
			c.Labels, c.Annotations = map[string]string{"a/b": "c", "empty": ""}, map[string]string{"note": "two\nlines", "json": `{"a": 1}`}
		})
		status := f.SandboxStatus(f.sandbox)
		if diff := cmp.Diff([]any{f.config.Labels, f.config.Annotations}, []any{status.Labels, status.Annotations}); diff != "" {
			t.Errorf("status (-want +got):\n%s", diff)
		}
	})
	f.try(t, "linux.cgroup_parent", func(t *testing.T) {
		if _, err := os.Stat("/run/systemd/system"); err == nil {
			slice := f.burstable()
			f.pod(func(c *runtimeapi.PodSandboxConfig) { c.Linux.CgroupParent = slice })
			controller, above := "memory", strings.TrimSuffix(slice, "-burstable.slice")+".slice"
			if onV2() {
				controller = ""
			}
			if dir := podCgroup(t, f.pid(t, f.running(nil)))(controller); !strings.HasSuffix(dir, "/"+above+"/"+slice) {
				t.Errorf("the pod's cgroup is %s, want that of %s", dir, slice)
			}
			return
		}
		f.NeedsOfHandler(t, harness.ContainerProcesses)
		parent := "/" + filepath.Base(f.Dir) + "/burst/pod1"
		f.pod(func(c *runtimeapi.PodSandboxConfig) { c.Linux.CgroupParent = parent })
		want(t, "the pod's cgroup", podCgroup(t, f.pid(t, f.running(nil)))("memory"), "/sys/fs/cgroup/memory"+parent)
		f.RemovePod(f.sandbox)
		if _, err := os.Stat("/sys/fs/cgroup/memory/" + filepath.Base(f.Dir)); err == nil {
			t.Error("the cgroups that were made for the pod are left")
		}
	})
	f.try(t, "sysctls that nobody asked for", func(t *testing.T) {
		f.NeedsOfHandler(t, harness.HostKernel)
		f.pod(nil)
		want(t, "low ports are free", f.says(t, "cat /proc/sys/net/ipv4/ip_unprivileged_port_start", nil), "0")
	})
	f.try(t, "overhead, resources: each limit", func(t *testing.T) { f.testSandboxLimits(t) })
	f.try(t, "overhead, resources", func(t *testing.T) {
		f.pod(func(c *runtimeapi.PodSandboxConfig) {
			c.Linux.Overhead = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 8 << 20, CpuShares: 77}
			c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 200 << 20}
		})
		dir, file := podCgroup(t, f.pid(t, f.running(nil))), "memory.limit_in_bytes"
		key := "memory"
		if onV2() {
			key, file = "", "memory.max"
		}
		data, err := os.ReadFile(filepath.Join(dir(key), file))
		if err != nil || strings.TrimSpace(string(data)) != "209715200" {
			t.Errorf("%s: %s, %v", file, data, err)
		}
		answer, err := f.Runtime.PodSandboxStatus(f.Ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: f.sandbox, Verbose: true})
		if err != nil || !strings.Contains(answer.Info["info"], `"memoryLimitInBytes":"8388608"`) || !strings.Contains(answer.Info["info"], `"cpuShares":"77"`) {
			t.Errorf("the overhead is not reported: %v, %v", answer.GetInfo(), err)
		}
		if onV2() {
			return // with systemd, which accepts only the name of a slice
		}
		// The creator of a cgroup that the request names sets its limits.
		f.pod(func(c *runtimeapi.PodSandboxConfig) {
			c.Linux.CgroupParent = "/" + filepath.Base(f.Dir) + "-kubepods"
			c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 200 << 20}
		})
		named := podCgroup(t, f.pid(t, f.running(nil)))
		data, err = os.ReadFile(filepath.Join(named(key), file))
		if err != nil || strings.TrimSpace(string(data)) == "209715200" || !strings.HasSuffix(named(key), "-kubepods") {
			t.Errorf("the limit of %s, which the request names: %s, %v", named(key), data, err)
		}
	})
	f.try(t, "sec.namespace_options net/pid/ipc", func(t *testing.T) {
		f.NeedsOfHandler(t, harness.HostKernel)
		host := func(kind string) string {
			link, err := os.Readlink("/proc/self/ns/" + kind)
			if err != nil {
				t.Fatal(err)
			}
			return link
		}
		shares := func(kind string) bool {
			return f.says(t, "readlink /proc/self/ns/"+kind, func(c containerConfig) {
				containerSecurity(c).NamespaceOptions = f.config.Linux.SecurityContext.NamespaceOptions
			}) == host(kind)
		}
		for _, node := range []bool{false, true} {
			f.pod(func(c *runtimeapi.PodSandboxConfig) {
				if node {
					c.Linux.SecurityContext.NamespaceOptions = &runtimeapi.NamespaceOption{
						Ipc: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_NODE,
					}
				}
			})
			for _, kind := range []string{"ipc", "pid"} {
				if shares(kind) != node {
					t.Errorf("NODE %v: shares the host's %s namespace: %v", node, kind, !node)
				}
			}
		}
		f.pod(func(c *runtimeapi.PodSandboxConfig) {
			c.Hostname, c.Linux.SecurityContext.NamespaceOptions.Network = "", runtimeapi.NamespaceMode_NODE
		})
		if got := f.SandboxStatus(f.sandbox).Linux.Namespaces.Options.Network; got != runtimeapi.NamespaceMode_NODE {
			t.Errorf("status: %s", got)
		}
		network, err := f.InHost("readlink", "/proc/self/ns/net").Output()
		if err != nil {
			t.Fatal(err)
		}
		want(t, "the host's network", f.says(t, "readlink /proc/self/ns/net", func(c containerConfig) {
			containerSecurity(c).NamespaceOptions = f.config.Linux.SecurityContext.NamespaceOptions
		}), strings.TrimSpace(string(network)))
		f.refused(t, codes.InvalidArgument, func(c *runtimeapi.PodSandboxConfig) {
			options := c.Linux.SecurityContext.NamespaceOptions
			options.Pid, options.TargetId = runtimeapi.NamespaceMode_TARGET, f.sandbox
		}, "namespace_options.pid", "TARGET")
	})
	f.try(t, "selinux, run_as_user/group, readonly_rootfs, supplemental_groups(+policy)", func(t *testing.T) { f.testSandboxProcess(t) })
	f.try(t, "privileged, seccomp, apparmor", func(t *testing.T) { f.testSandboxProfiles(t) })
}
