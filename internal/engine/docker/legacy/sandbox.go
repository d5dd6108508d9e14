package legacy

import (
	"fmt"

	"github.com/moby/moby/api/types/container"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/docker/checkpoints"
	"github.com/berthrun/berth/internal/engine/docker/labels"
)

// Sandbox returns the sandbox of a pause container: one that still has the name it was made with. cp is its checkpoint, nil for none: then it
// has no port mappings. Running and Sandbox are left to the caller.
func Sandbox(c *container.InspectResponse, cp *checkpoints.Checkpoint) (*engine.FormerSandbox, error) {
	if err := check(c); err != nil {
		return nil, err
	}
	of, err := pod(c)
	if err != nil {
		return nil, err
	}
	if name, err := labels.Parse(c.Name); err != nil || name.Container != "" ||
		name.Pod != of.Pod || name.Namespace != of.Namespace || name.UID != of.UID {
		return nil, &ForeignError{ID: c.ID, Why: fmt.Sprintf("its name %q is not that of the pod's sandbox, k8s_POD_%s_%s_%s_ATTEMPT",
			c.Name, of.Pod, of.Namespace, of.UID)}
	}
	if cp == nil {
		cp = &checkpoints.Checkpoint{}
	}
	host := c.HostConfig
	requested, annotations := labels.Split(c.Config.Labels)
	created, _ := times(c)
	return &engine.FormerSandbox{
		ID: c.ID, CreatedAt: created,
		Config: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: of.Pod, Namespace: of.Namespace, Uid: of.UID, Attempt: of.Attempt},
			Hostname: c.Config.Hostname, LogDirectory: logDirectory(of), PortMappings: cp.Ports,
			Labels: requested, Annotations: annotations,
			Linux: &runtimeapi.LinuxPodSandboxConfig{
				CgroupParent: host.CgroupParent, Sysctls: host.Sysctls,
				SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
					Privileged: host.Privileged,
					NamespaceOptions: &runtimeapi.NamespaceOption{
						Network: namespaceMode(host.NetworkMode.IsHost() || cp.HostNetwork, runtimeapi.NamespaceMode_POD),
						Pid:     namespaceMode(host.PidMode.IsHost(), runtimeapi.NamespaceMode_CONTAINER),
						Ipc:     namespaceMode(host.IpcMode.IsHost(), runtimeapi.NamespaceMode_POD),
					},
				},
			},
		},
	}, nil
}

// podLogs is where kubelets have the logs of all pods.
const podLogs = "/var/log/pods"

// logDirectory is where a kubelet has the logs of a pod's containers: no label of a pause
// container has it.
func logDirectory(of labels.Parsed) string {
	return fmt.Sprintf("%s/%s_%s_%s", podLogs, of.Namespace, of.Pod, of.UID)
}

// Join adds to a sandbox what only its containers have: their log directory, which differs
// between releases of a kubelet, and a PID namespace that they share.
func Join(sandbox *engine.FormerSandbox, containers []*engine.FormerContainer) {
	meta := sandbox.Config.GetMetadata()
	of := labels.Parsed{Pod: meta.GetName(), Namespace: meta.GetNamespace(), UID: meta.GetUid()}
	options := sandbox.Config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	for _, c := range containers {
		if c.SandboxID != sandbox.ID {
			continue
		}
		if dir := logDirectoryOf(c); isLogDirectory(dir, of) {
			sandbox.Config.LogDirectory = dir
		}
		if c.SharesPid && options.GetPid() != runtimeapi.NamespaceMode_NODE {
			options.Pid = runtimeapi.NamespaceMode_POD
		}
	}
}
