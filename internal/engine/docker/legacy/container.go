package legacy

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/docker/labels"
	"github.com/berthrun/berth/internal/errs"
)

// Container returns a container of a pod. State, Pid and Exit are left to the caller.
func Container(c *container.InspectResponse) (*engine.FormerContainer, error) {
	if err := check(c); err != nil {
		return nil, err
	}
	of, err := pod(c)
	if err != nil {
		return nil, err
	}
	l := c.Config.Labels
	requested, annotations := labels.Split(l)
	name := l[labels.Container]
	if name == "" {
		name = of.Container
	}
	sandbox := l[labels.SandboxDockerID]
	if name == "" || sandbox == "" {
		return nil, fmt.Errorf("cannot adopt container %s of pod %s/%s: its label %s or %s is missing: %w",
			c.ID, of.Namespace, of.Pod, labels.Container, labels.SandboxDockerID, errs.Invalid)
	}
	// dockershim and cri-dockerd do this for pods on the host's network, too.
	if got := c.HostConfig.NetworkMode; string(got) != "container:"+sandbox {
		return nil, &ForeignError{ID: c.ID, Why: fmt.Sprintf("its network is %q and not that of its pod's sandbox %s", got, sandbox)}
	}
	attempt := of.Attempt
	if _, err := labels.Parse(c.Name); err != nil { // somebody has renamed it
		count, _ := strconv.ParseUint(annotations[restartCount], 10, 32)
		attempt = uint32(count)
	}
	former := &engine.FormerContainer{
		ID: c.ID, SandboxID: sandbox, LogPath: logPath(l),
		ImageID: c.Image, StopSignal: c.Config.StopSignal,
		SharesPid: c.HostConfig.PidMode.IsContainer() && c.HostConfig.PidMode.Container() == sandbox,
	}
	former.CreatedAt, former.StartedAt = times(c)
	former.Config = &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name, Attempt: attempt},
		Image:    &runtimeapi.ImageSpec{Image: c.Config.Image},
		Command:  c.Config.Entrypoint, Args: c.Config.Cmd, WorkingDir: c.Config.WorkingDir, Envs: envs(c.Config.Env),
		Labels: requested, Annotations: annotations, Mounts: mounts(c.Mounts),
		Stdin: c.Config.OpenStdin, StdinOnce: c.Config.StdinOnce, Tty: c.Config.Tty,
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources: resources(c.HostConfig),
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				Privileged: c.HostConfig.Privileged, ReadonlyRootfs: c.HostConfig.ReadonlyRootfs,
				NamespaceOptions: containerNamespaces(c.HostConfig, former.SharesPid),
			},
		},
	}
	if former.LogPath != "" {
		former.Config.LogPath = strings.TrimPrefix(former.LogPath, logDirectoryOf(former)+"/")
	}
	return former, nil
}

// logPath is the path of a container's log, "" where the label has none that can be written.
func logPath(l map[string]string) string {
	path := l[labels.LogPath]
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || strings.Count(path, "/") < 3 {
		return ""
	}
	return path
}

// logDirectoryOf is the log directory of a container's pod, "" if that is not known. A kubelet
// has a directory for each container in it, and kubelets before 1.14 have a file.
func logDirectoryOf(c *engine.FormerContainer) string {
	if c.LogPath == "" {
		return ""
	}
	dir := filepath.Dir(c.LogPath)
	if filepath.Base(dir) == c.Config.GetMetadata().GetName() {
		return filepath.Dir(dir)
	}
	return dir
}

func containerNamespaces(host *container.HostConfig, sharesPid bool) *runtimeapi.NamespaceOption {
	options := &runtimeapi.NamespaceOption{
		Network: namespaceMode(host.NetworkMode.IsHost(), runtimeapi.NamespaceMode_POD),
		Pid:     namespaceMode(host.PidMode.IsHost(), runtimeapi.NamespaceMode_CONTAINER),
		Ipc:     namespaceMode(host.IpcMode.IsHost(), runtimeapi.NamespaceMode_POD),
	}
	if sharesPid {
		options.Pid = runtimeapi.NamespaceMode_POD
	}
	return options
}

func envs(entries []string) []*runtimeapi.KeyValue {
	var all []*runtimeapi.KeyValue
	for _, entry := range entries {
		key, value, _ := strings.Cut(entry, "=")
		all = append(all, &runtimeapi.KeyValue{Key: key, Value: []byte(value)})
	}
	return all
}

// mounts are the volumes of the pod. Volumes of the engine are those that the image declares.
func mounts(points []container.MountPoint) []*runtimeapi.Mount {
	var all []*runtimeapi.Mount
	for i := range points {
		p := &points[i]
		if p.Type != mount.TypeBind {
			continue
		}
		m := &runtimeapi.Mount{ContainerPath: p.Destination, HostPath: p.Source, Readonly: !p.RW}
		switch p.Propagation {
		case mount.PropagationRShared, mount.PropagationShared:
			m.Propagation = runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
		case mount.PropagationRSlave, mount.PropagationSlave:
			m.Propagation = runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
		case mount.PropagationPrivate, mount.PropagationRPrivate:
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *runtimeapi.Mount) int { return strings.Compare(a.GetContainerPath(), b.GetContainerPath()) })
	return all
}

func resources(host *container.HostConfig) *runtimeapi.LinuxContainerResources {
	return &runtimeapi.LinuxContainerResources{
		CpuPeriod: host.CPUPeriod, CpuQuota: host.CPUQuota, CpuShares: host.CPUShares,
		CpusetCpus: host.CpusetCpus, CpusetMems: host.CpusetMems,
		MemoryLimitInBytes: host.Memory, MemorySwapLimitInBytes: max(host.MemorySwap, 0), // -1 is no limit
		OomScoreAdj: int64(host.OomScoreAdj),
	}
}
