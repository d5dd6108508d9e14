package view

import (
	"encoding/json"
	"net"

	"github.com/berthrun/berth/internal/pod/record"
)

// podInterface is the pod's interface in each network.
const podInterface = "eth0"

// shownNetwork is the attachment of a sandbox in the shape of containerd's cniResult, which
// tools read. Its keys are spelt as there. What the plugins answered, in CNI's own shape,
// is in network.cni of the same info.
type shownNetwork struct {
	Interfaces map[string]*shownInterface
	DNS        []json.RawMessage
	Routes     []json.RawMessage
}

type shownInterface struct {
	IPConfigs  []shownIP
	Mac        string
	Sandbox    string
	PciID      string
	SocketPath string
}

type shownIP struct {
	IP, Gateway string
}

// cniAnswer is the part of a CNI result (0.4 and later) that is shown.
type cniAnswer struct {
	Interfaces []struct{ Name, Mac, Sandbox, PciID, SocketPath string }
	IPs        []struct {
		Interface        *int
		Address, Gateway string
	}
	Routes []json.RawMessage
	DNS    json.RawMessage
}

// shownNetworkOf returns nil for a sandbox that is attached to nothing.
func shownNetworkOf(rec *record.Sandbox) *shownNetwork {
	if rec.Network == nil || rec.Engine == nil || rec.Engine.NetNS == "" {
		return nil
	}
	shown := &shownNetwork{Interfaces: map[string]*shownInterface{}, DNS: []json.RawMessage{}, Routes: []json.RawMessage{}}
	var answer cniAnswer
	if len(rec.Network.CNI) == 0 || json.Unmarshal(rec.Network.CNI, &answer) != nil {
		own := shown.at(podInterface)
		own.Sandbox = rec.Engine.NetNS
		for _, ip := range rec.Network.IPs {
			own.IPConfigs = append(own.IPConfigs, shownIP{IP: ip.String()})
		}
		return shown
	}
	for _, link := range answer.Interfaces {
		at := shown.at(link.Name)
		at.Mac, at.Sandbox, at.PciID, at.SocketPath = link.Mac, link.Sandbox, link.PciID, link.SocketPath
	}
	for _, ip := range answer.IPs {
		name := podInterface
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(answer.Interfaces) {
			name = answer.Interfaces[*i].Name
		}
		address := ip.Address
		if parsed, _, err := net.ParseCIDR(address); err == nil {
			address = parsed.String()
		}
		at := shown.at(name)
		at.IPConfigs = append(at.IPConfigs, shownIP{IP: address, Gateway: ip.Gateway})
	}
	shown.Routes = append(shown.Routes, answer.Routes...)
	if len(answer.DNS) > 0 {
		shown.DNS = append(shown.DNS, answer.DNS)
	}
	return shown
}

func (n *shownNetwork) at(name string) *shownInterface {
	if n.Interfaces[name] == nil {
		n.Interfaces[name] = &shownInterface{IPConfigs: []shownIP{}}
	}
	return n.Interfaces[name]
}
