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
	// Dir holds what is the pod's own, LogDir its logs, ClaimDir the directories of
	// claims, SeccompDir the profiles that a pod names by a relative path.
	Dir, LogDir, ClaimDir, SeccompDir string
	// PodIPs and HostIPs are for fields of the downward API and the hosts file.
	PodIPs, HostIPs []string
	// NodeName likewise.
	NodeName string
	// HostHosts is the host's hosts file, HostDNS what its resolv.conf says.
	HostHosts string
	HostDNS   *runtimeapi.DNSConfig
	// Capacity of the host.
	Capacity Capacity
	// CgroupParent is for runtimes that must be told one; mostly empty.
	CgroupParent string
	// UserNamespace is the host's id of the pod's root, where hostUsers is false.
	UserNamespace uint32
	// RecursiveReadOnly says that the runtime can make mounts read-only with all below.
	RecursiveReadOnly bool
	// ReadVolume reads a file that a container has written into a volume, NotFound for
	// none. It is nil until containers run.
	ReadVolume func(volume, path string) ([]byte, error)
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

// Made is a container's configuration, with what must be done before it is created.
type Made struct {
	Config *runtimeapi.ContainerConfig
	// SubPaths are bound to their targets.
	SubPaths []SubPath
	// Message is an empty file that everybody may write, "" for none.
	Message string
}

// Container makes the configuration of a container's given attempt.
func (b *Bundle) Container(c *corev1.Container, attempt uint32, facts *Facts) (*Made, error) {
	env, err := b.environment(c, facts)
	if err != nil {
		return nil, &Fault{Line: b.place.line("spec"), Why: fmt.Sprintf("cannot make the environment of container %s: %v", c.Name, err)}
	}
	values := map[string]string{}
	for _, e := range env {
		values[e.name] = e.value
	}
	mounts, subs, err := b.mounts(c, attempt, values, facts)
	if err != nil {
		return nil, &Fault{Line: b.place.line("spec"), Why: fmt.Sprintf("cannot mount the volumes of container %s: %v", c.Name, err)}
	}
	number := strconv.FormatUint(uint64(attempt), 10)
	config := &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: attempt},
		Image:       &runtimeapi.ImageSpec{Image: c.Image, UserSpecifiedImage: c.Image},
		WorkingDir:  c.WorkingDir,
		Labels:      b.labels(c.Name),
		Annotations: map[string]string{annotationRestarts: number},
		LogPath:     filepath.Join(c.Name, number+".log"),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		StopSignal:  stopSignal(c),
		Mounts:      append(mounts, b.ownMounts(c, attempt, facts)...),
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       b.resources(c),
			SecurityContext: b.securityContext(c, facts),
		},
	}
	for _, e := range env {
		config.Envs = append(config.Envs, &runtimeapi.KeyValue{Key: e.name, Value: []byte(e.value)})
	}
	for _, word := range c.Command {
		config.Command = append(config.Command, expand(word, values))
	}
	for _, word := range c.Args {
		config.Args = append(config.Args, expand(word, values))
	}
	made := &Made{Config: config, SubPaths: subs}
	if c.TerminationMessagePath != "" && !mountsAt(c, c.TerminationMessagePath) {
		made.Message = MessageFile(facts.Dir, c.Name, attempt)
	}
	return made, nil
}

func stopSignal(c *corev1.Container) runtimeapi.Signal {
	if c.Lifecycle == nil || c.Lifecycle.StopSignal == nil {
		return runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT
	}
	return runtimeapi.Signal(runtimeapi.Signal_value["SIGNAL_"+string(*c.Lifecycle.StopSignal)])
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
