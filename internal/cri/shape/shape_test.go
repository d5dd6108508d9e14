package shape

import (
	"errors"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/fieldtest"
	"github.com/berthrun/berth/internal/ocispec/requesttest"
)

func sandboxConfig() *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "ns", Uid: "u-1"},
		Hostname:     "web",
		LogDirectory: "/var/log/pods/ns_web_u-1",
		DnsConfig:    &runtimeapi.DNSConfig{Servers: []string{"10.0.0.10"}, Searches: []string{"svc.local"}, Options: []string{"ndots:5"}},
		PortMappings: []*runtimeapi.PortMapping{{ContainerPort: 80, HostPort: 8080}, {}},
	}
}

func containerConfig() *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "app"},
		Image:    &runtimeapi.ImageSpec{Image: "busybox"},
		LogPath:  "app/0.log",
		Envs:     []*runtimeapi.KeyValue{{Key: "A", Value: []byte("b=c\nd")}},
		Mounts:   []*runtimeapi.Mount{{ContainerPath: "/data", HostPath: "/srv"}, {ContainerPath: "/i", Image: &runtimeapi.ImageSpec{Image: "x"}}},
	}
}

func TestGoodConfigsPass(t *testing.T) {
	if err := Sandbox(sandboxConfig()); err != nil {
		t.Error(err)
	}
	if err := Container(containerConfig()); err != nil {
		t.Error(err)
	}
}

func TestBadSandboxConfigsAreRefusedByField(t *testing.T) {
	for want, change := range map[string]func(*runtimeapi.PodSandboxConfig){
		"sandbox config must include metadata": func(c *runtimeapi.PodSandboxConfig) { c.Metadata = nil },
		"config.metadata.name is empty":        func(c *runtimeapi.PodSandboxConfig) { c.Metadata.Name = "" },
		"config.metadata.namespace":            func(c *runtimeapi.PodSandboxConfig) { c.Metadata.Namespace = "a/../b" },
		"config.metadata.uid":                  func(c *runtimeapi.PodSandboxConfig) { c.Metadata.Uid = "u\n" },
		`config.hostname "a\nb"`:               func(c *runtimeapi.PodSandboxConfig) { c.Hostname = "a\nb" },
		"config.hostname \"" + strings.Repeat("x", 65): func(c *runtimeapi.PodSandboxConfig) {
			c.Hostname = strings.Repeat("x", 65)
		},
		"config.log_directory":                    func(c *runtimeapi.PodSandboxConfig) { c.LogDirectory = "logs" },
		"config.dns_config.servers":               func(c *runtimeapi.PodSandboxConfig) { c.DnsConfig.Servers = []string{"1.1.1.1\nnameserver 2.2.2.2"} },
		"config.dns_config.searches":              func(c *runtimeapi.PodSandboxConfig) { c.DnsConfig.Searches = []string{"a b"} },
		"config.dns_config.options":               func(c *runtimeapi.PodSandboxConfig) { c.DnsConfig.Options = []string{""} },
		"config.port_mappings[0].container_port":  func(c *runtimeapi.PodSandboxConfig) { c.PortMappings[0].ContainerPort = 0 },
		"config.port_mappings[0].host_port 70000": func(c *runtimeapi.PodSandboxConfig) { c.PortMappings[0].HostPort = 70000 },
		"config.port_mappings[1] is missing":      func(c *runtimeapi.PodSandboxConfig) { c.PortMappings[1] = nil },
		"config.port_mappings[0].protocol":        func(c *runtimeapi.PodSandboxConfig) { c.PortMappings[0].Protocol = 9 },
	} {
		config := sandboxConfig()
		change(config)
		if err := Sandbox(config); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(fieldtest.Named(err.Error()), "config") {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestBadContainerConfigsAreRefusedByField(t *testing.T) {
	for want, change := range map[string]func(*runtimeapi.ContainerConfig){
		"config.metadata":      func(c *runtimeapi.ContainerConfig) { c.Metadata = nil },
		"config.metadata.name": func(c *runtimeapi.ContainerConfig) { c.Metadata.Name = ".." },
		"config.metadata.name: CreateContainerRequest.ContainerConfig.Name is empty": func(c *runtimeapi.ContainerConfig) {
			c.Metadata.Name = ""
		},
		"config.image.image is empty": func(c *runtimeapi.ContainerConfig) { c.Image = nil },
		"config.log_path":             func(c *runtimeapi.ContainerConfig) { c.LogPath = "../../etc/passwd" },
		`config.log_path "/var`:       func(c *runtimeapi.ContainerConfig) { c.LogPath = "/var/log/x" },
		"config.envs[0].key":          func(c *runtimeapi.ContainerConfig) { c.Envs[0].Key = "A=B" },
		"config.envs[0].value":        func(c *runtimeapi.ContainerConfig) { c.Envs[0].Value = []byte("a\x00b") },
		"Mount.ContainerPath is empty": func(c *runtimeapi.ContainerConfig) {
			c.Mounts[0].ContainerPath = ""
		},
		"Mount.HostPath is empty":       func(c *runtimeapi.ContainerConfig) { c.Mounts[0].HostPath = "" },
		"config.mounts[0].host_path \"": func(c *runtimeapi.ContainerConfig) { c.Mounts[0].HostPath = "srv" },
	} {
		config := containerConfig()
		change(config)
		if err := Container(config); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(fieldtest.Named(err.Error()), "config") {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// refusal is a request that must be refused: the change to a valid request, and the field that the
// message names.
type refusal[C any] struct {
	change func(C)
	kind   error
	field  string
}

func refuse[C any](t *testing.T, good func() C, shape func(C) error, refusals []refusal[C]) {
	t.Helper()
	if err := shape(good()); err != nil {
		t.Fatalf("a good request is refused: %v", err)
	}
	for _, r := range refusals {
		config := good()
		r.change(config)
		err := shape(config)
		if !errors.Is(err, r.kind) || !strings.Contains(err.Error(), r.field) {
			t.Errorf("%s: %v, want kind %v and the field", r.field, err, r.kind)
			continue
		}
		if path := fieldtest.Named(err.Error()); !strings.HasPrefix(path, "config.") {
			t.Errorf("the message %q names no field of the request", err)
		}
	}
}

func TestSandboxesRefused(t *testing.T) {
	type config = *runtimeapi.PodSandboxConfig
	long := "/" + strings.Repeat("a/", 3000)
	port := func(p *runtimeapi.PortMapping) func(config) {
		return func(c config) { c.PortMappings = []*runtimeapi.PortMapping{p} }
	}
	refuse(t, requesttest.KubeletSandbox, Sandbox, []refusal[config]{
		{port(&runtimeapi.PortMapping{HostPort: 80, ContainerPort: 70000}), errs.Invalid, "port_mappings[0].container_port"},
		{port(&runtimeapi.PortMapping{HostPort: 80}), errs.Invalid, "port_mappings[0].container_port"},
		{port(&runtimeapi.PortMapping{HostPort: 80, ContainerPort: 80, Protocol: 17}), errs.Invalid, "port_mappings[0].protocol"},
		{port(&runtimeapi.PortMapping{HostPort: 1, ContainerPort: 2, HostIp: "host"}), errs.Invalid, "port_mappings[0].host_ip"},
		{func(c config) { c.Metadata = nil }, errs.Invalid, "metadata"},
		{func(c config) { c.Metadata.Name = "" }, errs.Invalid, "metadata.name"},
		{func(c config) { c.Metadata.Name = "a\nb" }, errs.Invalid, "metadata.name"},
		{func(c config) { c.Metadata.Namespace = "../etc" }, errs.Invalid, "metadata.namespace"},
		{func(c config) { c.Metadata.Uid = "a;K8S_POD_NAME=b" }, errs.Invalid, "metadata.uid"},
		{func(c config) { c.Metadata.Name = "a;K8S_POD_UID=b" }, errs.Invalid, "metadata.name"},
		{func(c config) { c.Metadata.Name = "a/./b" }, errs.Invalid, "metadata.name"},
		{func(c config) { c.Metadata.Uid = "a/b" }, errs.Invalid, "metadata.uid"},
		{func(c config) { c.Metadata.Uid = strings.Repeat("u", 254) }, errs.Invalid, "metadata.uid"},
		{func(c config) { c.Hostname = "a\n127.0.0.1 b" }, errs.Invalid, "hostname"},
		{func(c config) { c.Hostname = "a b" }, errs.Invalid, "hostname"},
		{func(c config) { c.Hostname = strings.Repeat("a", 65) }, errs.Invalid, "hostname"},
		{func(c config) { c.LogDirectory = "logs" }, errs.Invalid, "log_directory"},
		{func(c config) { c.LogDirectory = "/logs/../etc" }, errs.Invalid, "log_directory"},
		{func(c config) { c.DnsConfig.Servers[0] = "1.1.1.1\nnameserver 6.6.6.6" }, errs.Invalid, "dns_config.servers[0]"},
		{func(c config) { c.DnsConfig.Searches[0] = "a b" }, errs.Invalid, "dns_config.searches[0]"},
		{func(c config) { c.DnsConfig.Options[0] = "" }, errs.Invalid, "dns_config.options[0]"},
		{func(c config) { c.DnsConfig.Servers = make([]string, 1025) }, errs.Invalid, "dns_config.servers"},
		{func(c config) { c.DnsConfig.Searches[0] = strings.Repeat("a", 256) }, errs.Invalid, "dns_config.searches[0]"},
		{func(c config) { c.LogDirectory = long }, errs.Invalid, "log_directory"},
		{func(c config) { c.LogDirectory = "/" + strings.Repeat("a", 256) }, errs.Invalid, "log_directory"},
		{func(c config) { c.PortMappings = make([]*runtimeapi.PortMapping, 65536) }, errs.Invalid, "port_mappings"},
		{func(c config) { c.PortMappings = []*runtimeapi.PortMapping{{HostIp: "ff02::1"}} }, errs.Invalid, "port_mappings[0].host_ip"},
		{func(c config) { c.PortMappings = []*runtimeapi.PortMapping{{HostIp: "fe80::1%eth0"}} }, errs.Invalid, "port_mappings[0].host_ip"},
		{func(c config) { c.PortMappings = []*runtimeapi.PortMapping{{Protocol: 9}} }, errs.Invalid, "port_mappings[0].protocol"},
		{func(c config) { c.PortMappings = []*runtimeapi.PortMapping{{ContainerPort: 70000}} }, errs.Invalid, "port_mappings[0].container_port"},
		{func(c config) { c.PortMappings = []*runtimeapi.PortMapping{{ContainerPort: 1, HostPort: -1}} }, errs.Invalid, "port_mappings[0].host_port"},
		{func(c config) { c.PortMappings = []*runtimeapi.PortMapping{{HostIp: "x"}} }, errs.Invalid, "port_mappings[0].host_ip"},
		{func(c config) { c.Annotations["a\nb"] = "" }, errs.Invalid, "annotations"},
		{func(c config) { c.Labels["a"] = "\x00" }, errs.Invalid, "labels"},
	})
	if err := Sandbox(nil); !errors.Is(err, errs.Invalid) {
		t.Errorf("no config: %v, want kind Invalid", err)
	}
}

func TestContainersRefused(t *testing.T) {
	type config = *runtimeapi.ContainerConfig
	long := "/" + strings.Repeat("a/", 3000)
	refuse(t, requesttest.KubeletContainer, Container, []refusal[config]{
		{func(c config) { c.LogPath = "../out.log" }, errs.Invalid, "log_path"},
		{func(c config) { c.LogPath = "/abs.log" }, errs.Invalid, "log_path"},
		{func(c config) { c.LogPath = "a/../../out.log" }, errs.Invalid, "log_path"},
		{func(c config) { c.LogPath = "." }, errs.Invalid, "log_path"},
		{func(c config) { c.Metadata = nil }, errs.Invalid, "metadata"},
		{func(c config) { c.Metadata.Name = "" }, errs.Invalid, "metadata.name"},
		{func(c config) { c.Image = nil }, errs.Invalid, "image.image"},
		{func(c config) { c.Envs[0].Key = "A=B" }, errs.Invalid, "envs[0].key"},
		{func(c config) { c.Envs[0].Key = "A\nB" }, errs.Invalid, "envs[0].key"},
		{func(c config) { c.Envs[0].Value = []byte{'a', 0} }, errs.Invalid, "envs[0].value"},
		{func(c config) { c.Mounts[0].ContainerPath = "etc" }, errs.Invalid, "mounts[0].container_path"},
		{func(c config) { c.Mounts[0].ContainerPath = "/.." }, errs.Invalid, "mounts[0].container_path"},
		{func(c config) { c.Mounts[1].HostPath = "etc" }, errs.Invalid, "mounts[1].host_path"},
		{func(c config) { c.Mounts[1].HostPath = "" }, errs.Invalid, "mounts[1].host_path"},
		{func(c config) { c.Mounts[0].ContainerPath = long }, errs.Invalid, "mounts[0].container_path"},
		{func(c config) { c.Mounts[0].HostPath = "/" + strings.Repeat("a", 256) }, errs.Invalid, "mounts[0].host_path"},
		{func(c config) { c.Mounts = slices.Repeat(c.Mounts[:1], 8193) }, errs.Invalid, "mounts"},
		{func(c config) { c.LogPath = long[1:] + "x" }, errs.Invalid, "log_path"},
		{func(c config) { c.LogPath = "/var/log/x" }, errs.Invalid, "log_path"},
		{func(c config) { c.LogPath = "a/../../x" }, errs.Invalid, "log_path"},
		{func(c config) { c.LogPath = "a/" + strings.Repeat("b", 256) }, errs.Invalid, "log_path"},
		{func(c config) { c.LogPath = "a/" }, errs.Invalid, "log_path"},
		{func(c config) { c.LogPath = "a\nb" }, errs.Invalid, "log_path"},
	})
	if err := Container(nil); !errors.Is(err, errs.Invalid) {
		t.Errorf("no config: %v, want kind Invalid", err)
	}
}
