// Package podspec looks up parts of a pod's spec.
package podspec

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Containers lists the init containers and the containers of a pod.
func Containers(pod *corev1.Pod) []*corev1.Container {
	var all []*corev1.Container
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			all = append(all, &list[i])
		}
	}
	return all
}

// Container finds a container or an init container by name, nil for none.
func Container(pod *corev1.Pod, name string) *corev1.Container {
	for _, c := range Containers(pod) {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// Volume finds a volume by name, nil for none.
func Volume(pod *corev1.Pod, name string) *corev1.Volume {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == name {
			return &pod.Spec.Volumes[i]
		}
	}
	return nil
}

// IsSidecar reports whether an init container keeps running beside the containers.
func IsSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// IsTrue reports whether an optional field is set and true.
func IsTrue(b *bool) bool { return b != nil && *b }

// Port resolves a port of a probe or a hook, which may be the name of one of the container's.
func Port(c *corev1.Container, port intstr.IntOrString) (int32, error) {
	number := port.IntVal
	if port.Type == intstr.String {
		for _, p := range c.Ports {
			if p.Name == port.StrVal {
				return p.ContainerPort, nil
			}
		}
		n, err := strconv.ParseInt(port.StrVal, 10, 32)
		if err != nil {
			return 0, fmt.Errorf("container %s has no port named %q", c.Name, port.StrVal)
		}
		number = int32(n)
	}
	if number < 1 || number > 65535 {
		return 0, fmt.Errorf("port %d is not between 1 and 65535", number)
	}
	return number, nil
}
