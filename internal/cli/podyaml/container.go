package podyaml

import (
	"fmt"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/document"
	"github.com/berthrun/berth/internal/cli/podyaml/resources"
	"github.com/berthrun/berth/internal/cli/podyaml/security"
	"github.com/berthrun/berth/internal/cli/podyaml/source"
)

// Labels and annotations by which tools recognize the pods of a kubelet; berth's pods have them,
// too. RunAnnotation is on the pods of `berth pod run`. VolumesAnnotation and LogsAnnotation name the
// directories that it made for the pod.
const (
	labelPodName       = "io.kubernetes.pod.name"
	labelPodNamespace  = "io.kubernetes.pod.namespace"
	labelPodUID        = "io.kubernetes.pod.uid"
	labelContainerName = "io.kubernetes.container.name"
	annotationRestarts = "io.kubernetes.container.restartCount"
	RunAnnotation      = "berth.run/pod-run"
	VolumesAnnotation  = "berth.run/pod-run-volumes"
	LogsAnnotation     = "berth.run/pod-run-logs"
)

// ContainerSetup is a container's configuration, with what must be done before it is created.
type ContainerSetup struct {
	Config *runtimeapi.ContainerConfig
	// SubPaths are bound to their targets.
	SubPaths []SubPath
	// Message is an empty file that everybody may write, "" for none.
	Message string
}

// Container makes the configuration of a container's given attempt.
func (b *Bundle) Container(c *corev1.Container, attempt uint32, facts *Facts) (*ContainerSetup, error) {
	env, err := b.Environment(c, facts.node())
	if err != nil {
		return nil, &document.Fault{Line: b.place.Line("spec"), Why: fmt.Sprintf("cannot make the environment of container %s: %v", c.Name, err)}
	}
	values := map[string]string{}
	for _, e := range env {
		values[e.Name] = e.Value
	}
	mounts, subs, err := b.mounts(c, attempt, values, facts)
	if err != nil {
		return nil, &document.Fault{Line: b.place.Line("spec"), Why: fmt.Sprintf("cannot mount the volumes of container %s: %v", c.Name, err)}
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
			Resources:       resources.ForContainer(b.Pod, c),
			SecurityContext: security.ForContainer(b.Pod, c, facts.security()),
		},
	}
	for _, e := range env {
		config.Envs = append(config.Envs, &runtimeapi.KeyValue{Key: e.Name, Value: []byte(e.Value)})
	}
	for _, word := range c.Command {
		config.Command = append(config.Command, source.Expand(word, values))
	}
	for _, word := range c.Args {
		config.Args = append(config.Args, source.Expand(word, values))
	}
	made := &ContainerSetup{Config: config, SubPaths: subs}
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
