package cri

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"unicode"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
)

// RunPodSandbox implements runtimeapi.RuntimeServiceServer.
func (s *Server) RunPodSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	if err := checkSandboxConfig(req.GetConfig()); err != nil {
		return nil, fmt.Errorf("cannot run sandbox: %w", err)
	}
	id, err := s.opts.Lifecycle.RunSandbox(ctx, req.GetConfig(), req.GetRuntimeHandler())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// maxHostname is what the kernel takes (HOST_NAME_MAX).
const maxHostname = 64

// checkSandboxConfig refuses what can never be right, before anything is recorded:
// missing names, and texts that would break out of the lines and paths that they
// are written to.
func checkSandboxConfig(config *runtimeapi.PodSandboxConfig) error {
	if config == nil {
		return invalid("config is missing")
	}
	if config.GetMetadata() == nil {
		return invalid("config.metadata: sandbox config must include metadata")
	}
	if err := checkName("config.metadata.name", config.GetMetadata().GetName()); err != nil {
		return err
	}
	if err := checkName("config.metadata.namespace", config.GetMetadata().GetNamespace()); err != nil {
		return err
	}
	if strings.ContainsFunc(config.GetMetadata().GetUid(), breaksPath) {
		return invalid("config.metadata.uid %q has a slash, a space or a control character", config.GetMetadata().GetUid())
	}
	if host := config.GetHostname(); len(host) > maxHostname || strings.ContainsFunc(host, breaksPath) {
		return invalid("config.hostname %q is longer than %d or has a slash, a space or a control character", host, maxHostname)
	}
	if dir := config.GetLogDirectory(); dir != "" && (!filepath.IsAbs(dir) || strings.ContainsRune(dir, 0)) {
		return invalid("config.log_directory %q is not an absolute path", dir)
	}
	if err := checkDNS(config.GetDnsConfig()); err != nil {
		return err
	}
	return checkPorts(config.GetPortMappings())
}

// checkDNS refuses words that would become other lines of resolv.conf.
func checkDNS(dns *runtimeapi.DNSConfig) error {
	for field, words := range map[string][]string{
		"servers":  dns.GetServers(),
		"searches": dns.GetSearches(),
		"options":  dns.GetOptions(),
	} {
		for i, word := range words {
			if word == "" || strings.ContainsFunc(word, breaksLine) {
				return invalid("config.dns_config.%s[%d] %q is empty or has a space or a control character", field, i, word)
			}
		}
	}
	return nil
}

func checkPorts(ports []*runtimeapi.PortMapping) error {
	for i, p := range ports {
		if p == nil {
			return invalid("config.port_mappings[%d] is missing", i)
		}
		if _, known := runtimeapi.Protocol_name[int32(p.GetProtocol())]; !known {
			return invalid("config.port_mappings[%d].protocol %d is unknown", i, p.GetProtocol())
		}
		if p.GetHostPort() > 65535 {
			return invalid("config.port_mappings[%d].host_port %d is above 65535", i, p.GetHostPort())
		}
		// A mapping without a host port asks for nothing.
		if p.GetHostPort() > 0 && (p.GetContainerPort() < 1 || p.GetContainerPort() > 65535) {
			return invalid("config.port_mappings[%d].container_port %d is not between 1 and 65535", i, p.GetContainerPort())
		}
	}
	return nil
}

// checkName refuses a name that is empty, would break a line, or looks like a path that
// climbs. Names are parts of no path: what is made for a pod has its id.
func checkName(field, name string) error {
	switch {
	case name == "":
		return invalid("%s is empty", field)
	case len(name) > 253:
		return invalid("%s is longer than 253 characters", field)
	case ocispec.ClimbingName(name) || strings.ContainsFunc(name, unicode.IsControl):
		return invalid("%s %q has a control character, or . or .. between slashes", field, name)
	}
	return nil
}

// breaksLine reports whether a character ends a word or a line of a file.
func breaksLine(r rune) bool { return r <= ' ' || r == 0x7f }

// breaksPath reports whether a character cannot be part of one name in a path.
func breaksPath(r rune) bool { return breaksLine(r) || r == '/' }

// invalid makes an error of kind Invalid; the text names the field.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errs.Invalid)
}
