package berth

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// Annotations of berth, for what CRI has no field for. The daemon defines them; a test compares the
// names.
const (
	annotationTmpfs     = "run.berth.tmpfs"
	annotationCgroupns  = "run.berth.cgroupns"
	annotationVolumes   = "run.berth.volumes"
	annotationStorage   = "run.berth.storage"
	annotationAddresses = "run.berth.addresses"
)

// namespace is that of the pods, container the name of each one's container.
const (
	namespace = "berth-cluster"
	container = "node"
)

// podConfig is the request for the pod of a node.
func podConfig(r *record, dir string, resolvers *runtimeapi.DNSConfig) (*runtimeapi.PodSandboxConfig, error) {
	ports, err := mappings(r.Ports)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", r.name(), err)
	}
	pod := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: r.name(), Namespace: namespace, Uid: r.UID, Attempt: r.Run},
		Hostname:     r.name(),
		LogDirectory: filepath.Join(dir, logs),
		DnsConfig:    resolvers,
		PortMappings: ports,
		Labels:       labels(r),
		Annotations:  map[string]string{},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			Sysctls: r.Spec.Sysctls,
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				Privileged: r.Spec.Privileged, NamespaceOptions: namespaces(), Seccomp: unconfined(),
			},
		},
	}
	if r.Spec.Privileged && len(r.Addresses) > 0 {
		pod.Annotations[annotationAddresses] = join(r.Addresses)
	}
	return pod, nil
}

// containerConfig is the request for the container of a node. Privilege gives all devices, /proc
// and /sys; the node sees only its own subtree of cgroups.
func containerConfig(r *record, dir string) *runtimeapi.ContainerConfig {
	c := &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: container, Attempt: r.Run},
		Image:       &runtimeapi.ImageSpec{Image: r.Spec.Image},
		Command:     r.Spec.Command,
		Labels:      labels(r),
		Annotations: map[string]string{annotationCgroupns: "private"},
		LogPath:     logName(r.Run),
		Tty:         true,
		Linux: &runtimeapi.LinuxContainerConfig{
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				Privileged: r.Spec.Privileged, NamespaceOptions: namespaces(), Seccomp: unconfined(), Apparmor: unconfined(),
			},
		},
	}
	if r.isNode() {
		c.StopSignal = runtimeapi.Signal_SIGNAL_SIGRTMINPLUS3 // what systemd halts on
	}
	for _, name := range slices.Sorted(maps.Keys(r.Spec.Env)) {
		c.Envs = append(c.Envs, &runtimeapi.KeyValue{Key: name, Value: []byte(r.Spec.Env[name])})
	}
	if len(r.Spec.Tmpfs) > 0 {
		c.Annotations[annotationTmpfs] = strings.Join(r.Spec.Tmpfs, ",")
	}
	var volumes []string
	for _, v := range r.Spec.Volumes {
		volumes = append(volumes, v.Target)
	}
	if len(volumes) > 0 {
		c.Annotations[annotationVolumes] = strings.Join(volumes, ",")
	}
	c.Annotations[annotationStorage] = filepath.Join(dir, storage)
	c.Mounts = mounts(r, dir)
	return c
}

// mounts are those of the plan, and the hosts file unless the plan mounts another file at its path.
func mounts(r *record, dir string) []*runtimeapi.Mount {
	const hostsFile = "/etc/hosts"
	all := []*runtimeapi.Mount{{HostPath: filepath.Join(dir, hostsName), ContainerPath: hostsFile, SelinuxRelabel: true}}
	for _, m := range r.Spec.Mounts {
		if m.Target == hostsFile {
			all = all[1:]
		}
	}
	for _, m := range r.Spec.Mounts {
		mount := &runtimeapi.Mount{HostPath: m.Source, ContainerPath: m.Target, Readonly: m.ReadOnly, SelinuxRelabel: m.Relabel}
		switch m.Propagation {
		case config.PropagateBidirectional:
			mount.Propagation = runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
		case config.PropagateHostToContainer:
			mount.Propagation = runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
		}
		all = append(all, mount)
	}
	return all
}

// mappings are the ports of the host.
func mappings(ports []plan.Port) ([]*runtimeapi.PortMapping, error) {
	var all []*runtimeapi.PortMapping
	for _, p := range ports {
		protocol, known := runtimeapi.Protocol_value[string(p.Protocol)]
		if !known || p.Host <= 0 {
			return nil, fmt.Errorf("port %d/%s of the host to port %d: %w", p.Host, p.Protocol, p.Container, errs.Invalid)
		}
		mapping := &runtimeapi.PortMapping{
			Protocol: runtimeapi.Protocol(protocol), HostPort: int32(p.Host), ContainerPort: int32(p.Container), HostIp: p.Listen,
		}
		all = append(all, mapping)
	}
	return all, nil
}

// labels are the labels by which a node is found.
func labels(r *record) map[string]string {
	all := maps.Clone(r.Spec.Labels)
	if all == nil {
		all = map[string]string{}
	}
	all[provider.LabelNode] = r.name()
	all[provider.LabelAttempt] = r.UID
	return all
}

// namespaces: systemd is process 1 of the container's own.
func namespaces() *runtimeapi.NamespaceOption {
	return &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
}

func unconfined() *runtimeapi.SecurityProfile {
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
}

// logName is the log of a run.
func logName(run uint32) string { return strconv.FormatUint(uint64(run), 10) + ".log" }

func join(addresses []netip.Addr) string {
	var texts []string
	for _, a := range addresses {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ",")
}
