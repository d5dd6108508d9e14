package podyaml

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/podspec"
	"github.com/berthrun/berth/internal/cli/podyaml/resources"
)

// ForegroundFields names every field of the workload itself that `berth pod run` honours only in
// the foreground.
func (w *Workload) ForegroundFields() []string {
	var names []string
	if w.IsJob() && w.Retries > 0 {
		names = append(names, fmt.Sprintf("spec.backoffLimit: %d (6 is the default; 0 works with -d)", w.Retries))
	}
	if w.Parallel > 0 && w.Parallel < len(w.Pods) {
		names = append(names, fmt.Sprintf("spec.parallelism: %d of %d completions", w.Parallel, len(w.Pods)))
	}
	if w.MinReady > 0 {
		names = append(names, "spec.minReadySeconds")
	}
	if w.Deadline > 0 {
		names = append(names, "spec.activeDeadlineSeconds")
	}
	return w.Place.Whole().Locate(names)
}

// ForegroundFields names every field of the pod that `berth pod run` honours only in the
// foreground: with -d it can honour none of them.
func (b *Bundle) ForegroundFields() []string {
	var names []string
	spec := &b.Pod.Spec
	if spec.RestartPolicy != corev1.RestartPolicyNever {
		names = append(names, fmt.Sprintf("spec.restartPolicy: %s (Always is the default; Never works with -d)", spec.RestartPolicy))
	}
	if spec.ActiveDeadlineSeconds != nil {
		names = append(names, "spec.activeDeadlineSeconds")
	}
	for i := range spec.Volumes {
		if v := &spec.Volumes[i]; v.EmptyDir != nil && v.EmptyDir.SizeLimit != nil && v.EmptyDir.Medium == corev1.StorageMediumDefault {
			names = append(names, fmt.Sprintf("spec.volumes[%d].emptyDir.sizeLimit", i))
		}
	}
	for i := range spec.InitContainers {
		field := fmt.Sprintf("spec.initContainers[%d]", i)
		if podspec.IsSidecar(&spec.InitContainers[i]) {
			names = append(names, field+".restartPolicy: Always")
		}
		names = append(names, b.foregroundFields(field, &spec.InitContainers[i])...)
	}
	for i := range spec.Containers {
		field := fmt.Sprintf("spec.containers[%d]", i)
		if p := spec.Containers[i].RestartPolicy; p != nil && *p != corev1.ContainerRestartPolicyNever {
			names = append(names, field+".restartPolicy: "+string(*p))
		}
		names = append(names, b.foregroundFields(field, &spec.Containers[i])...)
	}
	return b.place.Locate(names)
}

func (b *Bundle) foregroundFields(field string, c *corev1.Container) []string {
	names := probeFields(field, c)
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		names = append(names, field+".lifecycle.preStop")
	}
	if len(c.RestartPolicyRules) > 0 {
		names = append(names, field+".restartPolicyRules")
	}
	if resources.StorageLimit(c) > 0 {
		names = append(names, field+".resources.limits.ephemeral-storage")
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
