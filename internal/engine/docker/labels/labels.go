// Package labels has the names and the labels of the containers that berth creates in a Docker
// Engine. They are those of dockershim and cri-dockerd, which people, cAdvisor and scripts
// know, and a few of berth's own, by which berth finds its containers again.
package labels

import (
	"maps"
	"strings"

	"github.com/berthrun/berth/internal/engine"
)

// The labels of dockershim and cri-dockerd. All their containers have Type; older ones, made
// before Kubernetes 1.6, do not.
const (
	// Type is TypeSandbox for the pause container of a pod, and TypeContainer for the others.
	Type          = "io.kubernetes.docker.type"
	TypeSandbox   = "podsandbox"
	TypeContainer = "container"
	// LogPath is the absolute path of a container's log in CRI format, "" for none.
	LogPath = "io.kubernetes.container.logpath"
	// SandboxDockerID is the engine's id of the pause container of a container's pod.
	SandboxDockerID = "io.kubernetes.sandbox.id"
	// Container is the container's name in its pod, which the kubelet sets. On a pause
	// container it is PauseName, by which cAdvisor finds the pod's network.
	Container = "io.kubernetes.container.name"
	// PodName and PodNamespace are of requests: a kubelet sets them on all its sandboxes and containers.
	PodName      = "io.kubernetes.pod.name"
	PodNamespace = "io.kubernetes.pod.namespace"
	// AnnotationPrefix precedes the key of each annotation. Docker has no annotations.
	AnnotationPrefix = "annotation."
)

// The labels of berth. A container that another program made has none of them.
const (
	// ID is the id in CRI of a sandbox or a container: 64 lower-case hex digits.
	ID = "run.berth.id"
	// SandboxID is the id in CRI of a container's sandbox.
	SandboxID = "run.berth.sandbox"
	// LogDirectory is the log directory of a container's sandbox, which LogPath is below.
	LogDirectory = "run.berth.logs"
	// Instance is the name of the berth that made the container. Several can use one engine.
	Instance = "run.berth.instance"
	// Image is ImagePause on the pause image. The engine adds labels of an image to those of its
	// containers.
	Image      = "run.berth.image"
	ImagePause = "pause"
)

// OfSandbox returns the labels of a pause container: those of the request, its annotations, and
// berth's own, which replace labels of the same key in the request.
func OfSandbox(spec *engine.SandboxSpec, instance string) map[string]string {
	all := ofRequest(spec.Config.GetLabels(), spec.Config.GetAnnotations())
	all[Type] = TypeSandbox
	all[Container] = PauseName
	all[ID] = spec.ID
	all[Instance] = instance
	return all
}

// OfContainer returns the labels of a container, as OfSandbox does. sandboxDockerID is the
// engine's id of the pause container.
func OfContainer(spec *engine.ContainerSpec, instance, sandboxDockerID string) map[string]string {
	all := ofRequest(spec.Config.GetLabels(), spec.Config.GetAnnotations())
	all[Type] = TypeContainer
	all[SandboxDockerID] = sandboxDockerID
	// Without a label of its own a container has that of its image, and berth would write to it.
	all[LogPath], all[LogDirectory] = spec.LogPath, spec.SandboxSpec.Config.GetLogDirectory()
	all[ID] = spec.ID
	all[SandboxID] = spec.SandboxSpec.ID
	all[Instance] = instance
	return all
}

// ofRequest returns the labels and annotations of a request as labels of Docker. An annotation
// wins over a label with the same key: a pod's label cannot pass for another annotation.
func ofRequest(labels, annotations map[string]string) map[string]string {
	all := maps.Clone(labels)
	if all == nil {
		all = map[string]string{}
	}
	for key, value := range annotations {
		all[AnnotationPrefix+key] = value
	}
	maps.DeleteFunc(all, func(key, _ string) bool { return isInternal(key) })
	return all
}

// Split returns the labels and the annotations of a request from the labels of its container in
// Docker. It works for the containers of berth, dockershim and cri-dockerd. Neither map is nil.
// A label of the request that begins with AnnotationPrefix comes back as an annotation.
func Split(dockerLabels map[string]string) (labels, annotations map[string]string) {
	labels, annotations = map[string]string{}, map[string]string{}
	isSandbox := dockerLabels[Type] == TypeSandbox
	for key, value := range dockerLabels {
		name, isAnnotation := strings.CutPrefix(key, AnnotationPrefix)
		switch {
		case isInternal(key), isSandbox && key == Container:
		case isAnnotation:
			annotations[name] = value
		default:
			labels[key] = value
		}
	}
	return labels, annotations
}

// isInternal reports whether a label is about the container, and not from the request.
func isInternal(key string) bool {
	switch key {
	case Type, LogPath, LogDirectory, SandboxDockerID, ID, SandboxID, Instance, Image:
		return true
	}
	return false
}
