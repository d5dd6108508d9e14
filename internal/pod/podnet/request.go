package podnet

import (
	"fmt"
	"math"
	"net/netip"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/pod/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Check reports what a sandbox must not ask of its network: ports that do not exist and
// addresses that it may not have. Its errors are of kind Invalid and name the field.
func Check(config *runtimeapi.PodSandboxConfig) error {
	if _, err := hostPorts(config); err != nil {
		return err
	}
	_, err := addresses(config)
	return err
}

func attachment(rec *record.Sandbox, sb *engine.Sandbox) (*network.Attachment, error) {
	config := rec.Config.Get()
	ports, err := hostPorts(config)
	if err != nil {
		return nil, err
	}
	asked, err := addresses(config)
	if err != nil {
		return nil, err
	}
	att := &network.Attachment{
		Addresses: asked, Privileged: config.GetLinux().GetSecurityContext().GetPrivileged(),
		SandboxID: rec.ID, NetNS: sb.NetNS,
		Name: config.GetMetadata().GetName(), Namespace: config.GetMetadata().GetNamespace(), UID: config.GetMetadata().GetUid(),
		Annotations: config.GetAnnotations(), CgroupParent: sb.CgroupParent, Ports: ports,
	}
	if dns := config.GetDnsConfig(); dns != nil {
		att.DNS = &network.DNS{Servers: dns.GetServers(), Searches: dns.GetSearches(), Options: dns.GetOptions()}
	}
	return att, nil
}

// addresses are those that the pod asks for. Invalid when it may not ask.
func addresses(config *runtimeapi.PodSandboxConfig) ([]netip.Addr, error) {
	asked, err := network.AskedAddresses(config.GetAnnotations())
	if err != nil || len(asked) == 0 {
		return nil, err
	}
	security := config.GetLinux().GetSecurityContext()
	switch {
	case !security.GetPrivileged():
		return nil, network.RefusedAddresses("is for privileged pods only")
	case security.GetNamespaceOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE:
		return nil, network.RefusedAddresses("the pod has the host's network, and no address of its own")
	}
	return asked, nil
}

// hostPorts are the port mappings that ask for a port of the host. The others are for
// information only.
func hostPorts(config *runtimeapi.PodSandboxConfig) ([]network.Port, error) {
	var ports []network.Port
	for i, p := range config.GetPortMappings() {
		if p.GetHostPort() <= 0 {
			continue
		}
		if p.GetHostPort() > math.MaxUint16 || p.GetContainerPort() <= 0 || p.GetContainerPort() > math.MaxUint16 {
			return nil, fmt.Errorf("config.port_mappings[%d].host_port: port mapping %d:%d is out of range (1-65535): %w", i, p.GetHostPort(), p.GetContainerPort(), errs.Invalid)
		}
		port := network.Port{ContainerPort: uint16(p.GetContainerPort()), HostPort: uint16(p.GetHostPort()), HostIP: p.GetHostIp()}
		switch p.GetProtocol() {
		case runtimeapi.Protocol_TCP:
			port.Protocol = "tcp"
		case runtimeapi.Protocol_UDP:
			port.Protocol = "udp"
		case runtimeapi.Protocol_SCTP:
			port.Protocol = "sctp"
		default:
			return nil, fmt.Errorf("config.port_mappings[%d].protocol: unknown port mapping protocol: %v: %w", i, p.GetProtocol(), errs.Invalid)
		}
		ports = append(ports, port)
	}
	return ports, nil
}
