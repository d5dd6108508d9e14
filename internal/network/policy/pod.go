package policy

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// Pod is what policies need of a pod that has addresses of its own.
type Pod struct {
	Namespace, Name, UID, Node string
	Labels                     map[string]string
	Addrs                      []netip.Addr
	Ports                      []PodPort
	// Began is when the kubelet accepted the pod: of two pods with one address, the later one has it.
	Began time.Time
}

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
	pod = Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Node: p.Spec.NodeName, Labels: p.Labels, Began: p.CreationTimestamp.Time}
	if p.Status.StartTime != nil {
		pod.Began = p.Status.StartTime.Time
	}
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

// owned returns the pods with the addresses that are theirs alone. An address that two pods report
// belongs to the one that began last: the report of the other one is old.
func owned(pods []Pod) []Pod {
	owners := map[netip.Addr]int{}
	for i, p := range pods {
		for _, a := range p.Addrs {
			if j, taken := owners[a]; !taken || laterThan(p, pods[j]) {
				owners[a] = i
			}
		}
	}
	all := make([]Pod, 0, len(pods))
	for i, p := range pods {
		var mine []netip.Addr
		for _, a := range p.Addrs {
			if owners[a] == i {
				mine = append(mine, a)
			}
		}
		if p.Addrs = mine; len(mine) > 0 {
			all = append(all, p)
		}
	}
	return all
}

func laterThan(a, b Pod) bool {
	if c := a.Began.Compare(b.Began); c != 0 {
		return c > 0
	}
	return a.UID > b.UID
}
