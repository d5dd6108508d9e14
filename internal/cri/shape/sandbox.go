package shape

import (
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxHostname is what the kernel takes (HOST_NAME_MAX).
const maxHostname = 64

// Sandbox refuses the config of a sandbox.
func Sandbox(config *runtimeapi.PodSandboxConfig) error {
	if config == nil {
		return invalid("config is missing")
	}
	if err := podMetadata(config.GetMetadata()); err != nil {
		return err
	}
	if host := config.GetHostname(); len(host) > maxHostname || strings.ContainsFunc(host, breaksPath) {
		return invalid("config.hostname %q is longer than %d or has a slash, a space or a control character", host, maxHostname)
	}
	if strings.Contains(config.GetHostname(), "#") {
		return invalid("config.hostname: %q contains a character that a host name cannot have", config.GetHostname())
	}
	if err := logDirectory(config.GetLogDirectory()); err != nil {
		return err
	}
	if err := dns(config.GetDnsConfig()); err != nil {
		return err
	}
	if err := ports(config.GetPortMappings()); err != nil {
		return err
	}
	if err := texts("config.labels", config.GetLabels()); err != nil {
		return err
	}
	return texts("config.annotations", config.GetAnnotations())
}

// CheckpointPod refuses a request for the checkpoint of a pod.
func CheckpointPod(req *runtimeapi.CheckpointPodRequest) error {
	if err := directory("output_path", req.GetOutputPath()); err != nil {
		return err
	}
	if len(req.GetContainerIds()) == 0 {
		return invalid("container_ids is empty")
	}
	seen := map[string]bool{}
	for i, id := range req.GetContainerIds() {
		if id == "" || seen[id] {
			return invalid("container_ids[%d]: %q is empty, or is there twice", i, id)
		}
		seen[id] = true
	}
	return noOptions(req.GetOptions())
}

// RestorePod refuses a request for the restore of a pod.
func RestorePod(req *runtimeapi.RestorePodRequest) error {
	if err := directory("checkpoint_path", req.GetCheckpointPath()); err != nil {
		return err
	}
	if err := Sandbox(req.GetConfig()); err != nil {
		return err
	}
	if len(req.GetContainerConfigs()) == 0 {
		return invalid("container_configs is empty")
	}
	seen := map[string]bool{}
	for i, config := range req.GetContainerConfigs() {
		if err := Container(config); err != nil {
			return fmt.Errorf("container_configs[%d]: %w", i, err)
		}
		name := config.GetMetadata().GetName()
		if seen[name] {
			return invalid("container_configs[%d].metadata.name: %q is there twice", i, name)
		}
		seen[name] = true
	}
	return noOptions(req.GetOptions())
}

// directory refuses what is not the path of a directory.
func directory(field, dir string) error {
	if !path.IsAbs(dir) || path.Clean(dir) != dir || dir == "/" || hasControl(dir) {
		return invalid("%s: %q: want the absolute path of a directory, without . and ..", field, dir)
	}
	return pathLength(field, dir)
}

// noOptions refuses options: berth knows none.
func noOptions(options map[string]string) error {
	if len(options) == 0 {
		return nil
	}
	return invalid("options: unknown option %q; berth has none", slices.Sorted(maps.Keys(options))[0])
}

func podMetadata(metadata *runtimeapi.PodSandboxMetadata) error {
	if metadata == nil {
		return invalid("config.metadata: sandbox config must include metadata")
	}
	if err := name("config.metadata.name", metadata.GetName()); err != nil {
		return err
	}
	if err := name("config.metadata.namespace", metadata.GetNamespace()); err != nil {
		return err
	}
	// Directories of a kubelet's volumes have the uid as their name.
	uid := metadata.GetUid()
	if strings.ContainsFunc(uid, breaksPath) {
		return invalid("config.metadata.uid %q has a slash, a space or a control character", uid)
	}
	if uid != "" {
		if err := name("config.metadata.uid", uid); err != nil {
			return err
		}
	}
	for _, f := range []struct{ field, value string }{{"name", metadata.GetName()}, {"namespace", metadata.GetNamespace()}, {"uid", uid}} {
		if strings.ContainsAny(f.value, ";=") {
			return invalid("config.metadata.%s: %q contains ; or =, which would forge arguments of CNI plugins", f.field, f.value)
		}
	}
	return nil
}

func logDirectory(dir string) error {
	if dir != "" && (!path.IsAbs(dir) || hasControl(dir) || hasDotDot(dir)) {
		return invalid("config.log_directory %q is not an absolute path", dir)
	}
	return pathLength("config.log_directory", dir)
}

// Bounds of the lists of resolv.conf and of the words in them. A word is a domain or an
// address; a resolver reads far fewer.
const (
	maxDNSWords = 1024
	maxDNSWord  = 255
)

// dns refuses words that would add words or lines to resolv.conf.
func dns(config *runtimeapi.DNSConfig) error {
	for _, list := range []struct {
		field string
		words []string
	}{
		{"servers", config.GetServers()},
		{"searches", config.GetSearches()},
		{"options", config.GetOptions()},
	} {
		if n := len(list.words); n > maxDNSWords {
			return invalid("config.dns_config.%s: %d are more than %d", list.field, n, maxDNSWords)
		}
		for i, word := range list.words {
			if word == "" || strings.ContainsFunc(word, breaksLine) {
				return invalid("config.dns_config.%s[%d] %q is empty or has a space or a control character", list.field, i, word)
			}
			if len(word) > maxDNSWord {
				return invalid("config.dns_config.%s[%d]: is longer than %d bytes", list.field, i, maxDNSWord)
			}
		}
	}
	return nil
}

// maxPort is the largest port, and the largest number of ports of a pod.
const maxPort = 65535

func ports(mappings []*runtimeapi.PortMapping) error {
	if n := len(mappings); n > maxPort {
		return invalid("config.port_mappings: %d are more than %d", n, maxPort)
	}
	for i, p := range mappings {
		if p == nil {
			return invalid("config.port_mappings[%d] is missing", i)
		}
		if _, known := runtimeapi.Protocol_name[int32(p.GetProtocol())]; !known {
			return invalid("config.port_mappings[%d].protocol %d is unknown", i, p.GetProtocol())
		}
		if n := p.GetHostPort(); n < 0 || n > maxPort {
			return invalid("config.port_mappings[%d].host_port %d is not between 0 and %d", i, n, maxPort)
		}
		// A mapping without a host port has no effect.
		if n := p.GetContainerPort(); n < 0 || n > maxPort || n == 0 && p.GetHostPort() != 0 {
			return invalid("config.port_mappings[%d].container_port %d is not between 1 and %d", i, n, maxPort)
		}
		if ip := p.GetHostIp(); ip != "" {
			if addr, err := netip.ParseAddr(ip); err != nil || addr.Zone() != "" || addr.IsMulticast() {
				return invalid("config.port_mappings[%d].host_ip: %q is not an address of a host", i, ip)
			}
		}
	}
	return nil
}
