package podyaml

import (
	"maps"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/network"
	"github.com/berthrun/berth/internal/cli/podyaml/resources"
	"github.com/berthrun/berth/internal/cli/podyaml/security"
)

// Sandbox makes the configuration of the pod's sandbox.
func (b *Bundle) Sandbox(facts *Facts) *runtimeapi.PodSandboxConfig {
	pod := b.Pod
	labels := b.labels("")
	maps.Copy(labels, pod.Labels)
	annotations := map[string]string{RunAnnotation: "true"}
	maps.Copy(annotations, pod.Annotations)
	annotations[VolumesAnnotation], annotations[LogsAnnotation] = facts.Dir, facts.LogDir
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID),
		},
		Hostname:     network.Hostname(pod),
		LogDirectory: facts.LogDir,
		DnsConfig:    network.DNS(pod, facts.HostDNS, facts.HostDNSBehindStub),
		PortMappings: network.PortMappings(pod),
		Labels:       labels,
		Annotations:  annotations,
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent:    facts.CgroupParent,
			SecurityContext: security.ForSandbox(pod, facts.security()),
			Sysctls:         b.sysctls(),
			Resources:       resources.ForPod(pod),
			Overhead:        resources.Overhead(pod),
		},
	}
}

func (b *Bundle) sysctls() map[string]string {
	sysctls := map[string]string{}
	for _, s := range b.Pod.Spec.SecurityContext.Sysctls {
		sysctls[s.Name] = s.Value
	}
	return sysctls
}
