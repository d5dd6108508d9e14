package ocispec

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// AnnotationCgroupns of a pod or of a container, which wins, says which cgroup namespace
// a privileged container has: "host", as without it, or "private", one of its own, which a
// service manager needs that is the container's first process.
const AnnotationCgroupns = "run.berth.cgroupns"

// The values of AnnotationCgroupns.
const (
	cgroupnsHost    = "host"
	cgroupnsPrivate = "private"
)

// SharesCgroupns reports whether the container is in the host's cgroup namespace, where (on
// v2) it sees the cgroups of all: one that is privileged, unless it asks for its own.
// In a user namespace every container has its own, since nothing else can mount them there.
func SharesCgroupns(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) bool {
	asked, ok := config.GetAnnotations()[AnnotationCgroupns]
	if !ok {
		asked = sandbox.GetAnnotations()[AnnotationCgroupns]
	}
	return securityContext(config).GetPrivileged() && !hasUserNamespace(sandbox) && asked != cgroupnsPrivate
}

// checkCgroupns judges the annotation of a pod's or a container's request. A pod's holds for
// those of its containers that are privileged, so that only the pod must be.
func checkCgroupns(annotations map[string]string, privileged, userNamespace bool) error {
	const field = `config.annotations["` + AnnotationCgroupns + `"]`
	switch asked, ok := annotations[AnnotationCgroupns]; {
	case !ok || asked == cgroupnsPrivate:
		return nil
	case asked != cgroupnsHost:
		return invalid(field, "%q: want %s or %s", asked, cgroupnsHost, cgroupnsPrivate)
	case !privileged:
		return invalid(field, "%s is for privileged pods and containers only", cgroupnsHost)
	case userNamespace:
		return invalid(field, "%s cannot be combined with a user namespace", cgroupnsHost)
	}
	return nil
}
