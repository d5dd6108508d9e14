package labels

import "strings"

// HasOwnName reports whether one of a container's names is one that berth makes for a container with
// these labels. Labels alone prove nothing: docker commit copies them into an image, and what is run
// from the image has them.
func HasOwnName(dockerLabels map[string]string, names []string) bool {
	for _, name := range names {
		p, err := Parse(name)
		if err != nil || (p.Container == "") != (dockerLabels[Type] == TypeSandbox) {
			continue
		}
		pod, namespace := dockerLabels[PodName], dockerLabels[PodNamespace]
		if (pod == "" || part(pod) == p.Pod) && (namespace == "" || part(namespace) == p.Namespace) {
			return true
		}
	}
	return false
}

// IsInPlace reports whether a container has the network that berth gives to a container with these
// labels. mode is the network mode in the engine's words.
func IsInPlace(dockerLabels map[string]string, mode string) bool {
	if dockerLabels[Type] == TypeSandbox {
		return mode == "none" || mode == "host"
	}
	of, joined := strings.CutPrefix(mode, "container:")
	return mode == "host" || joined && of == dockerLabels[SandboxDockerID]
}
