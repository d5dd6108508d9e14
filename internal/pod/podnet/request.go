package podnet

import (
	"net/netip"
	"strings"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/pod/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Check refuses a sandbox that requests addresses which it may not have. Its errors are of
// kind Invalid and name the field.
func Check(config *runtimeapi.PodSandboxConfig) error {
	_, err := addresses(config)
	return err
}

func attachment(rec *record.Sandbox, sb *engine.Sandbox) (*network.Attachment, error) {
	asked, err := addresses(rec.Config.Get())
	if err != nil {
		return nil, err
	}
	att := attachmentOf(rec, sb)
	att.Addresses = asked
	return att, nil
}

// attachmentOf is an attachment whose addresses nobody has requested.
func attachmentOf(rec *record.Sandbox, sb *engine.Sandbox) *network.Attachment {
	config := rec.Config.Get()
	att := &network.Attachment{
		Privileged: config.GetLinux().GetSecurityContext().GetPrivileged(),
		SandboxID:  rec.ID, NetNS: sb.NetNS,
		Name: config.GetMetadata().GetName(), Namespace: config.GetMetadata().GetNamespace(), UID: config.GetMetadata().GetUid(),
		Annotations: config.GetAnnotations(), CgroupParent: sb.CgroupParent, Ports: hostPorts(config),
		Handler: rec.Handler,
	}
	if dns := config.GetDnsConfig(); dns != nil {
		att.DNS = &network.DNS{Servers: dns.GetServers(), Searches: dns.GetSearches(), Options: dns.GetOptions()}
	}
	return att
}

func onHostNetwork(config *runtimeapi.PodSandboxConfig) bool {
	return config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE
}

// addresses are those that the pod requests. Kind Invalid when it may not have them.
func addresses(config *runtimeapi.PodSandboxConfig) ([]netip.Addr, error) {
	asked, err := network.RequestedAddresses(config.GetAnnotations())
	if err != nil || len(asked) == 0 {
		return nil, err
	}
	security := config.GetLinux().GetSecurityContext()
	switch {
	case !security.GetPrivileged():
		return nil, network.InvalidAddresses("is for privileged pods only")
	case onHostNetwork(config):
		return nil, network.InvalidAddresses("the pod has the host's network, and no address of its own")
	}
	return asked, nil
}

// hostPorts are the port mappings with a host port. The others are for information only.
// Package cri/shape has checked them.
func hostPorts(config *runtimeapi.PodSandboxConfig) []network.Port {
	var ports []network.Port
	for _, p := range config.GetPortMappings() {
		if p.GetHostPort() == 0 {
			continue
		}
		ports = append(ports, network.Port{
			Protocol: strings.ToLower(p.GetProtocol().String()), ContainerPort: uint16(p.GetContainerPort()),
			HostPort: uint16(p.GetHostPort()), HostIP: p.GetHostIp(),
		})
	}
	return ports
}
