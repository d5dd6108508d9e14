package podyaml

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

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
		DnsConfig:    b.dns(facts),
		PortMappings: b.portMappings(),
		Labels:       labels,
		Annotations:  annotations,
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent:    facts.CgroupParent,
			SecurityContext: b.sandboxSecurityContext(facts),
			Sysctls:         b.sysctls(),
			Resources:       b.podResources(),
			Overhead:        b.overhead(),
		},
	}
}

func (b *Bundle) portMappings() []*runtimeapi.PortMapping {
	if b.Pod.Spec.HostNetwork {
		return nil
	}
	var mappings []*runtimeapi.PortMapping
	for _, c := range b.containers() {
		for _, p := range c.Ports {
			if p.HostPort == 0 {
				continue
			}
			mappings = append(mappings, &runtimeapi.PortMapping{
				Protocol: protocol(p.Protocol), ContainerPort: p.ContainerPort, HostPort: p.HostPort, HostIp: p.HostIP,
			})
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

// overhead is what the pod's sandbox itself is given, nil for nothing.
func (b *Bundle) overhead() *runtimeapi.LinuxContainerResources {
	if len(b.Pod.Spec.Overhead) == 0 {
		return nil
	}
	return linuxResources(b.Pod.Spec.Overhead, b.Pod.Spec.Overhead)
}

func (b *Bundle) sysctls() map[string]string {
	sysctls := map[string]string{}
	for _, s := range b.Pod.Spec.SecurityContext.Sysctls {
		sysctls[s.Name] = s.Value
	}
	return sysctls
}
