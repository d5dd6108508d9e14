package legacy

import (
	"cmp"
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
		ID: c.ID, SandboxID: sandbox,
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
	if path, directory := LogOf(c); path != "" {
		former.LogPath, former.Config.LogPath = path, strings.TrimPrefix(path, directory+"/")
	}
	return former, nil
}

// LogOf returns the absolute path of a container's log and the log directory of its pod, "" for a path
// that no kubelet has written into the label: root writes to it. A kubelet has the files
//
//	ROOT/NAMESPACE_POD_UID/CONTAINER/ATTEMPT.log
//	/var/log/pods/UID/CONTAINER/ATTEMPT.log   in earlier releases
//	/var/log/pods/UID/CONTAINER_ATTEMPT.log   in the first ones
//
// and ROOT is /var/log/pods unless its configuration says another one.
func LogOf(c *container.InspectResponse) (path, directory string) {
	of, err := pod(c)
	path = c.Config.Labels[labels.LogPath]
	if err != nil || !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return "", ""
	}
	dir, file := filepath.Split(path)
	dir = filepath.Clean(dir)
	name := cmp.Or(c.Config.Labels[labels.Container], of.Container)
	if filepath.Base(dir) == name && isLogFile(file, "") && isLogDirectory(filepath.Dir(dir), of) {
		return path, filepath.Dir(dir)
	}
	if isLogFile(file, name+"_") && isOldLogDirectory(dir, of) {
		return path, dir
	}
	return "", ""
}

// isLogFile reports whether a file is called prefixN.log.
func isLogFile(file, prefix string) bool {
	attempt, isLog := strings.CutSuffix(file, ".log")
	attempt, hasPrefix := strings.CutPrefix(attempt, prefix)
	_, err := strconv.ParseUint(attempt, 10, 32)
	return isLog && hasPrefix && err == nil
}

// isLogDirectory reports whether a directory is one that a kubelet makes for a pod's logs.
func isLogDirectory(dir string, of labels.Parsed) bool {
	return filepath.Base(dir) == filepath.Base(logDirectory(of)) || isOldLogDirectory(dir, of)
}

func isOldLogDirectory(dir string, of labels.Parsed) bool {
	return of.UID != "" && dir == filepath.Join(podLogs, of.UID) && filepath.Base(dir) == of.UID
}

// logDirectoryOf is the log directory of a container's pod, "" if that is not known.
func logDirectoryOf(c *engine.FormerContainer) string {
	return strings.TrimSuffix(strings.TrimSuffix(c.LogPath, c.Config.GetLogPath()), "/")
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
