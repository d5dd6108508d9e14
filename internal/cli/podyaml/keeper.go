package podyaml

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// KeeperFields names every field that somebody must stay for: who starts the pod
// and leaves can honour none of them.
func (b *Bundle) KeeperFields() []string {
	var names []string
	spec := &b.Pod.Spec
	if spec.RestartPolicy != corev1.RestartPolicyNever {
		names = append(names, fmt.Sprintf("spec.restartPolicy: %s (Always is the default; Never needs no keeper)", spec.RestartPolicy))
	}
	if spec.ActiveDeadlineSeconds != nil {
		names = append(names, "spec.activeDeadlineSeconds")
	}
	for i := range spec.InitContainers {
		field := fmt.Sprintf("spec.initContainers[%d]", i)
		if IsSidecar(&spec.InitContainers[i]) {
			names = append(names, field+".restartPolicy: Always")
		}
		names = append(names, probeFields(field, &spec.InitContainers[i])...)
	}
	for i := range spec.Containers {
		names = append(names, probeFields(fmt.Sprintf("spec.containers[%d]", i), &spec.Containers[i])...)
	}
	return names
}

func probeFields(field string, c *corev1.Container) []string {
	var names []string
	if c.StartupProbe != nil {
		names = append(names, field+".startupProbe")
	}
	if c.LivenessProbe != nil {
		names = append(names, field+".livenessProbe")
	}
	if c.ReadinessProbe != nil {
		names = append(names, field+".readinessProbe")
	}
	return names
}
