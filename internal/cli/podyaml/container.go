package podyaml

import (
	"fmt"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Labels and annotations by which tools know the pods of a kubelet; ours carry them
// too. KeeperAnnotation marks the pods of `berth pod run`.
const (
	labelPodName       = "io.kubernetes.pod.name"
	labelPodNamespace  = "io.kubernetes.pod.namespace"
	labelPodUID        = "io.kubernetes.pod.uid"
	labelContainerName = "io.kubernetes.container.name"
	annotationRestarts = "io.kubernetes.container.restartCount"
	KeeperAnnotation   = "berth.run/pod-run"
)

// Facts are what a pod's configuration needs beside its YAML.
type Facts struct {
	// Dir holds the pod's volumes, LogDir its logs.
	Dir, LogDir string
	// PodIP and HostIP are for fields of the downward API.
	PodIP, HostIP string
	// NodeName likewise.
	NodeName string
	// CgroupParent is for runtimes that must be told one; mostly empty.
	CgroupParent string
}

// IsSidecar tells of an init container that goes on beside the containers.
func IsSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// Port resolves a probe's port, which may be a name of one of the container's.
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

// Container makes the configuration of a container's given attempt.
func (b *Bundle) Container(c *corev1.Container, attempt uint32, facts *Facts) (*runtimeapi.ContainerConfig, error) {
	env, err := b.environment(c, facts)
	if err != nil {
		return nil, fmt.Errorf("cannot make the environment of container %s: %w", c.Name, err)
	}
	values := map[string]string{}
	config := &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: attempt},
		Image:       &runtimeapi.ImageSpec{Image: c.Image, UserSpecifiedImage: c.Image},
		WorkingDir:  c.WorkingDir,
		Labels:      b.labels(c.Name),
		Annotations: map[string]string{annotationRestarts: strconv.FormatUint(uint64(attempt), 10)},
		LogPath:     filepath.Join(c.Name, strconv.FormatUint(uint64(attempt), 10)+".log"),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       resources(c.Resources),
			SecurityContext: b.securityContext(c),
		},
	}
	for _, e := range env {
		config.Envs = append(config.Envs, &runtimeapi.KeyValue{Key: e.name, Value: []byte(e.value)})
		values[e.name] = e.value
	}
	for _, word := range c.Command {
		config.Command = append(config.Command, expand(word, values))
	}
	for _, word := range c.Args {
		config.Args = append(config.Args, expand(word, values))
	}
	for i := range c.VolumeMounts {
		config.Mounts = append(config.Mounts, b.mount(&c.VolumeMounts[i], facts.Dir))
	}
	return config, nil
}

// labels of a container, or of the sandbox when name is "".
func (b *Bundle) labels(name string) map[string]string {
	labels := map[string]string{
		labelPodName: b.Pod.Name, labelPodNamespace: b.Pod.Namespace, labelPodUID: string(b.Pod.UID),
	}
	if name != "" {
		labels[labelContainerName] = name
	}
	return labels
}

func (b *Bundle) mount(m *corev1.VolumeMount, dir string) *runtimeapi.Mount {
	v := b.volume(m.Name)
	source := volumePath(dir, v)
	if m.SubPath != "" {
		source = filepath.Join(source, m.SubPath)
	}
	mount := &runtimeapi.Mount{
		ContainerPath: m.MountPath,
		HostPath:      source,
		// What we wrote for the pod is not for it to change.
		Readonly: m.ReadOnly || v.ConfigMap != nil || v.Secret != nil,
		// As a kubelet has it: what is the host's keeps its labels.
		SelinuxRelabel: v.HostPath == nil,
	}
	if m.MountPropagation != nil {
		switch *m.MountPropagation {
		case corev1.MountPropagationHostToContainer:
			mount.Propagation = runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
		case corev1.MountPropagationBidirectional:
			mount.Propagation = runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
		}
	}
	return mount
}
