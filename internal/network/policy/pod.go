package policy

import (
	"net/netip"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// Pod is what policies need of a pod that has addresses of its own.
type Pod struct {
	Namespace, Name, UID, Node string
	Labels                     map[string]string
	Addrs                      []netip.Addr
	Ports                      []PodPort
}

// key names the pod among those that are there now.
func (p Pod) key() string { return p.Namespace + "/" + p.Name + "/" + p.UID }

// PodPort is a port that a container declares by name.
type PodPort struct {
	Name   string
	Proto  Protocol
	Number uint16
}

// PodOf reads a pod. ok is false for a pod that policies do not know by an address: one without an
// address, one that has ended, whose address may be another pod's already, and one in the network of
// its node, which has the node's addresses.
func PodOf(p *corev1.Pod) (pod Pod, ok bool) {
	if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return Pod{}, false
	}
	pod = Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Node: p.Spec.NodeName, Labels: p.Labels}
	for _, ip := range p.Status.PodIPs {
		if addr, err := netip.ParseAddr(ip.IP); err == nil {
			pod.Addrs = append(pod.Addrs, addr.Unmap())
		}
	}
	containers := append(p.Spec.Containers[:len(p.Spec.Containers):len(p.Spec.Containers)], sidecars(p)...)
	for _, c := range containers {
		for _, port := range c.Ports {
			if port.Name != "" && port.ContainerPort > 0 && port.ContainerPort <= 65535 {
				pod.Ports = append(pod.Ports, PodPort{port.Name, protocolOf(&port.Protocol), uint16(port.ContainerPort)})
			}
		}
	}
	return pod, len(pod.Addrs) > 0
}

// sidecars are the init containers that run beside the others.
func sidecars(p *corev1.Pod) []corev1.Container {
	var all []corev1.Container
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			all = append(all, c)
		}
	}
	return all
}

// protocolOf is the number of a protocol, by default TCP; 0 for one that policies do not know.
func protocolOf(p *corev1.Protocol) Protocol {
	if p == nil {
		return unix.IPPROTO_TCP
	}
	switch *p {
	case corev1.ProtocolTCP, "":
		return unix.IPPROTO_TCP
	case corev1.ProtocolUDP:
		return unix.IPPROTO_UDP
	case corev1.ProtocolSCTP:
		return unix.IPPROTO_SCTP
	}
	return 0
}

// contested are the addresses that more than one pod reports: one of the reports is old, and nothing says
// which.
func contested(pods []Pod) map[netip.Addr]bool {
	reports := map[netip.Addr]int{} // address -> the pod that reports it
	shared := map[netip.Addr]bool{}
	for i, p := range pods {
		for _, a := range p.Addrs {
			if j, reported := reports[a]; reported && j != i {
				shared[a] = true
			}
			reports[a] = i
		}
	}
	return shared
}

// without returns the pods without some addresses, and no pod that has none then.
func without(addrs map[netip.Addr]bool, pods []Pod) []Pod {
	all := make([]Pod, 0, len(pods))
	for _, p := range pods {
		var own []netip.Addr
		for _, a := range p.Addrs {
			if !addrs[a] {
				own = append(own, a)
			}
		}
		if p.Addrs = own; len(own) > 0 {
			all = append(all, p)
		}
	}
	return all
}
