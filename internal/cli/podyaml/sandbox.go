package podyaml

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxHostname is where Kubernetes cuts a pod's name that serves as hostname.
const maxHostname = 63

// Sandbox makes the configuration of the pod's sandbox.
func (b *Bundle) Sandbox(facts *Facts) *runtimeapi.PodSandboxConfig {
	pod := b.Pod
	labels := b.labels("")
	maps.Copy(labels, pod.Labels)
	annotations := map[string]string{KeeperAnnotation: "true"}
	maps.Copy(annotations, pod.Annotations)
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID),
		},
		Hostname:     b.hostname(),
		LogDirectory: facts.LogDir,
		DnsConfig:    b.dns(),
		PortMappings: b.portMappings(),
		Labels:       labels,
		Annotations:  annotations,
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent:    facts.CgroupParent,
			SecurityContext: b.sandboxSecurityContext(),
			Sysctls:         b.sysctls(),
		},
	}
}

func (b *Bundle) hostname() string {
	switch {
	case b.Pod.Spec.HostNetwork:
		return "" // the host's
	case b.Pod.Spec.Hostname != "":
		return b.Pod.Spec.Hostname
	case len(b.Pod.Name) > maxHostname:
		return b.Pod.Name[:maxHostname]
	}
	return b.Pod.Name
}

// dns is nil where the host's DNS is the pod's.
func (b *Bundle) dns() *runtimeapi.DNSConfig {
	if b.Pod.Spec.DNSPolicy != corev1.DNSNone {
		return nil
	}
	from := b.Pod.Spec.DNSConfig
	dns := &runtimeapi.DNSConfig{Servers: from.Nameservers, Searches: from.Searches}
	for _, option := range from.Options {
		word := option.Name
		if option.Value != nil {
			word += ":" + *option.Value
		}
		dns.Options = append(dns.Options, word)
	}
	return dns
}

func (b *Bundle) portMappings() []*runtimeapi.PortMapping {
	if b.Pod.Spec.HostNetwork {
		return nil
	}
	var mappings []*runtimeapi.PortMapping
	for _, list := range [][]corev1.Container{b.Pod.Spec.InitContainers, b.Pod.Spec.Containers} {
		for i := range list {
			for _, p := range list[i].Ports {
				if p.HostPort == 0 {
					continue
				}
				mappings = append(mappings, &runtimeapi.PortMapping{
					Protocol: protocol(p.Protocol), ContainerPort: p.ContainerPort, HostPort: p.HostPort, HostIp: p.HostIP,
				})
			}
		}
	}
	return mappings
}

func protocol(p corev1.Protocol) runtimeapi.Protocol {
	switch p {
	case corev1.ProtocolUDP:
		return runtimeapi.Protocol_UDP
	case corev1.ProtocolSCTP:
		return runtimeapi.Protocol_SCTP
	}
	return runtimeapi.Protocol_TCP
}

func (b *Bundle) sysctls() map[string]string {
	sysctls := map[string]string{}
	for _, s := range b.Pod.Spec.SecurityContext.Sysctls {
		sysctls[s.Name] = s.Value
	}
	return sysctls
}
