package request

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// AnnotationCgroupns of a pod or of a container, which wins, says which cgroup namespace
// a privileged container has: "host", as without it, or "private", one of its own, which a
// service manager needs that is the container's first process.
const AnnotationCgroupns = "run.berth.cgroupns"

// The values of AnnotationCgroupns.
const (
	CgroupnsHost    = "host"
	CgroupnsPrivate = "private"
)

// SharesCgroupns reports whether the container is in the host's cgroup namespace, where (on
// v2) it sees the cgroups of all: one that is privileged, unless it asks for its own.
// In a user namespace every container has its own, since nothing else can mount them there.
func SharesCgroupns(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) bool {
	asked, ok := config.GetAnnotations()[AnnotationCgroupns]
	if !ok {
		asked = sandbox.GetAnnotations()[AnnotationCgroupns]
	}
	return Security(config).GetPrivileged() && !HasUserNamespace(sandbox) && asked != CgroupnsPrivate
}
