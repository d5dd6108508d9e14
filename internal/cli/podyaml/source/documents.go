// Package source finds the values of environment variables and the files of volumes: in ConfigMaps
// and Secrets, in the pod's own fields and resources, and in env files.
package source

import corev1 "k8s.io/api/core/v1"

// Documents are a pod and the documents of its namespace that it may refer to.
type Documents struct {
	// Pod with its defaults filled in.
	Pod *corev1.Pod
	// ConfigMaps and Secrets by name.
	ConfigMaps map[string]*corev1.ConfigMap
	Secrets    map[string]*corev1.Secret
}

// Node has the node's facts for fields of the downward API and env files.
type Node struct {
	Name string
	// PodIPs and HostIPs, the first one of each is the primary address.
	PodIPs, HostIPs []string
	Capacity        Capacity
	// ReadVolume reads a file that a container has written into a volume, NotFound for
	// none. It is nil until containers run.
	ReadVolume func(volume, path string) ([]byte, error)
}

// Capacity is what the host has: the limits of containers that have none. Memory and Storage
// are bytes.
type Capacity struct{ MilliCPU, Memory, Storage int64 }
