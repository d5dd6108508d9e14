package check

import (
	"net/netip"
	"path"
	"strings"
	"unicode"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/berthrun/berth/internal/ocispec/request"
)

func checkPodMetadata(metadata *runtimeapi.PodSandboxMetadata) error {
	if metadata == nil {
		return fielderror.Invalid("config.metadata", "is missing")
	}
	for _, f := range []struct {
		name, value string
		required    bool
	}{
		{"name", metadata.GetName(), true},
		{"namespace", metadata.GetNamespace(), false},
		{"uid", metadata.GetUid(), false},
	} {
		if err := checkName("config.metadata."+f.name, f.value, f.required); err != nil {
			return err
		}
		if strings.ContainsAny(f.value, ";=") {
			return fielderror.Invalid("config.metadata."+f.name, "%q contains ; or =, which would forge arguments of CNI plugins", f.value)
		}
	}
	// Directories of a kubelet's volumes have it as their name.
	if uid := metadata.GetUid(); strings.ContainsAny(uid, "/ ") {
		return fielderror.Invalid("config.metadata.uid", "%q contains a slash or a space", uid)
	}
	return nil
}

// maxName is the longest name, namespace or uid, as Kubernetes has it.
const maxName = 253

// checkName judges names of pods and containers. They are shown, and parts of no path.
func checkName(field, value string, required bool) error {
	if required && value == "" {
		return fielderror.Invalid(field, "is missing")
	}
	if len(value) > maxName {
		return fielderror.Invalid(field, "is longer than %d bytes", maxName)
	}
	if request.HasControl(value) || ClimbingName(value) {
		return fielderror.Invalid(field, "%q contains a control character, or . or .. between slashes", value)
	}
	return nil
}

// ClimbingName tells of a name that would lead elsewhere if somebody took it for a path.
func ClimbingName(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == "." || part == ".." {
			return true
		}
	}
	return false
}

// maxHostname is the kernel's limit.
const maxHostname = 64

func checkHostname(hostname string) error {
	if len(hostname) > maxHostname {
		return fielderror.Invalid("config.hostname", "%q is longer than %d bytes", hostname, maxHostname)
	}
	if request.HasControl(hostname) || strings.ContainsAny(hostname, " /#") {
		return fielderror.Invalid("config.hostname", "%q contains a character that a host name cannot have", hostname)
	}
	return nil
}

func checkLogDirectory(dir string) error {
	if err := checkLength("config.log_directory", dir); err != nil {
		return err
	}
	if dir != "" && (!path.IsAbs(dir) || request.HasControl(dir) || hasDotDot(dir)) {
		return fielderror.Invalid("config.log_directory", "%q is not an absolute path", dir)
	}
	return nil
}

// Bounds of the lists of resolv.conf and of their words: of the names of domains, far
// above what a resolver reads.
const (
	maxDNSWords = 1024
	maxDNSWord  = 255
)

// checkDNS keeps each value a single word of a line of resolv.conf.
func checkDNS(dns *runtimeapi.DNSConfig) error {
	for _, list := range []struct {
		name   string
		values []string
	}{
		{"servers", dns.GetServers()},
		{"searches", dns.GetSearches()},
		{"options", dns.GetOptions()},
	} {
		if n := len(list.values); n > maxDNSWords {
			return fielderror.Invalid("config.dns_config."+list.name, "%d are more than %d", n, maxDNSWords)
		}
		for i, value := range list.values {
			if len(value) > maxDNSWord {
				return fielderror.Invalid(fielderror.Index("config.dns_config."+list.name, i, ""), "is longer than %d bytes", maxDNSWord)
			}
			if value == "" || request.HasControl(value) || strings.ContainsFunc(value, unicode.IsSpace) {
				return fielderror.Invalid(fielderror.Index("config.dns_config."+list.name, i, ""), "%q is not one word", value)
			}
		}
	}
	return nil
}

// maxPorts bounds the ports of a pod: each one once.
const maxPorts = 65535

func checkPorts(config *runtimeapi.PodSandboxConfig) error {
	if n := len(config.GetPortMappings()); n > maxPorts {
		return fielderror.Invalid("config.port_mappings", "%d are more than %d", n, maxPorts)
	}
	for i, port := range config.GetPortMappings() {
		if _, ok := runtimeapi.Protocol_name[int32(port.GetProtocol())]; !ok {
			return fielderror.Invalid(fielderror.Index("config.port_mappings", i, "protocol"), "unknown protocol %d", port.GetProtocol())
		}
		if n := port.GetContainerPort(); n < 0 || n > 65535 || n == 0 && port.GetHostPort() != 0 {
			return fielderror.Invalid(fielderror.Index("config.port_mappings", i, "container_port"), "%d is no port", n)
		}
		if n := port.GetHostPort(); n < 0 || n > 65535 {
			return fielderror.Invalid(fielderror.Index("config.port_mappings", i, "host_port"), "%d is no port", n)
		}
		if ip := port.GetHostIp(); ip != "" {
			if addr, err := netip.ParseAddr(ip); err != nil || addr.Zone() != "" || addr.IsMulticast() {
				return fielderror.Invalid(fielderror.Index("config.port_mappings", i, "host_ip"), "%q is no address of a host", ip)
			}
		}
	}
	return nil
}
