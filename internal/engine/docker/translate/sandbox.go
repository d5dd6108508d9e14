package translate

import (
	"path"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/request"
)

const (
	// PauseOOMScore keeps the kernel from killing the pause container for memory, where the engine can
	// set it.
	PauseOOMScore = -998
	// pauseShares is the least weight that the kernel has.
	pauseShares = 2
	// pauseShm is the size of the pod's /dev/shm, as the kubelet's users know it.
	pauseShm = 64 << 20
)

// SandboxInput is what the pause container of a sandbox depends on.
type SandboxInput struct {
	Spec *engine.SandboxSpec
	// Hostname is what the pod's processes see as their host's name.
	Hostname string
	// Name is the container's, Image the engine's id of the pause image.
	Name, Image string
	Labels      map[string]string
	// CgroupParent is the cgroup of the pod: a path, or a slice with the systemd driver.
	CgroupParent string
	// Seccomp is the filter of the pause container, nil for none.
	Seccomp *specs.LinuxSeccomp
	// Sysctls are the defaults of pods.
	Sysctls map[string]string
	// RaisedOOMScore is the oom_score_adj of the container if the engine cannot set PauseOOMScore; else
	// nil.
	RaisedOOMScore *int
	Facts          Facts
}

// Sandbox is the request for the pause container of a sandbox. It has no network of the
// engine's, and shares its IPC namespace. For any request its process is the unprivileged user of
// the pause image, without capabilities, on a root filesystem that is read-only.
func Sandbox(in SandboxInput) (client.ContainerCreateOptions, error) {
	config := in.Spec.Config
	namespaces := request.SandboxSecurity(config).GetNamespaceOptions()
	security, err := seccompOption(in.Seccomp)
	if err != nil {
		return client.ContainerCreateOptions{}, err
	}
	if in.Facts.SELinux {
		security = append(security, labelOptions(request.SandboxSecurity(config).GetSelinuxOptions())...)
	}
	host := &container.HostConfig{
		NetworkMode: "none", IpcMode: container.IPCModeShareable,
		SecurityOpt:    append(security, "no-new-privileges"),
		ReadonlyRootfs: true, OomScoreAdj: oomScore(PauseOOMScore, in.RaisedOOMScore), ShmSize: pauseShm,
		CapDrop: []string{"ALL"}, Sysctls: sysctlsOf(in),
		RestartPolicy: neverRestart(), Init: new(bool), LogConfig: container.LogConfig{Type: "none"},
		Resources: container.Resources{CPUShares: pauseShares, CgroupParent: in.CgroupParent},
	}
	if namespaces.GetNetwork() == runtimeapi.NamespaceMode_NODE {
		host.NetworkMode, host.UTSMode = "host", "host"
	}
	if namespaces.GetIpc() == runtimeapi.NamespaceMode_NODE {
		host.IpcMode, host.ShmSize = "host", 0
	}
	if namespaces.GetPid() == runtimeapi.NamespaceMode_NODE {
		host.PidMode = "host"
	}
	if in.Facts.UserNSRemap {
		host.UsernsMode = "host"
	}
	created := &container.Config{Image: in.Image, Labels: in.Labels, Healthcheck: noHealthcheck()}
	if host.UTSMode != "host" {
		created.Hostname = in.Hostname
	}
	return client.ContainerCreateOptions{Name: in.Name, Config: created, HostConfig: host}, nil
}

// oomScore is the requested oom_score_adj, or a raised one that is not nil.
func oomScore(requested int, raised *int) int {
	if raised != nil {
		return *raised
	}
	return requested
}

// sysctlsOf are the sysctls of the pod's IPC namespace. Those of its network are written when
// the network is attached, since they may be of its interfaces.
func sysctlsOf(in SandboxInput) map[string]string {
	if request.SandboxSecurity(in.Spec.Config).GetNamespaceOptions().GetIpc() == runtimeapi.NamespaceMode_NODE {
		return nil
	}
	sysctls := map[string]string{}
	for file, value := range ocispec.IPCSysctls(in.Spec.Config, in.Sysctls) {
		sysctls[dotted(file)] = value
	}
	return sysctls
}

// dotted is a sysctl's name as the engine has it, from its file below /proc/sys.
func dotted(file string) string {
	name := []byte(path.Clean(file))
	for i, c := range name {
		switch c {
		case '/':
			name[i] = '.'
		case '.':
			name[i] = '/'
		}
	}
	return string(name)
}

func neverRestart() container.RestartPolicy {
	return container.RestartPolicy{Name: container.RestartPolicyDisabled}
}

func noHealthcheck() *container.HealthConfig {
	return &container.HealthConfig{Test: []string{"NONE"}}
}
