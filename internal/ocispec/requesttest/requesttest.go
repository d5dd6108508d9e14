// Package requesttest has CRI requests as a kubelet sends them, for tests.
package requesttest

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// KubeletSandbox and KubeletContainer are what kubelet v1.36 sends for a pod of
// which the manifest says nothing but a name and an image.
// KubeletSandbox is the request for a sandbox.
func KubeletSandbox() *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "1f0c", Attempt: 0},
		Hostname:     "web",
		LogDirectory: "/var/log/pods/default_web_1f0c",
		DnsConfig:    &runtimeapi.DNSConfig{Servers: []string{"10.0.0.10"}, Searches: []string{"default.svc.cluster.local"}, Options: []string{"ndots:5"}},
		Labels:       map[string]string{"io.kubernetes.pod.name": "web"},
		Annotations:  map[string]string{"kubernetes.io/config.source": "file", "note": "two\nlines"},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: "/kubepods/besteffort/pod1f0c",
			Sysctls:      map[string]string{},
			Overhead:     &runtimeapi.LinuxContainerResources{},
			Resources:    &runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuShares: 2},
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: kubeletNamespaces(),
				Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
			},
		},
	}
}

func kubeletNamespaces() *runtimeapi.NamespaceOption {
	return &runtimeapi.NamespaceOption{
		Pid:           runtimeapi.NamespaceMode_CONTAINER,
		UsernsOptions: &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE},
	}
}

// KubeletContainer is the request for a container in KubeletSandbox.
func KubeletContainer() *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: "server"},
		Image:       &runtimeapi.ImageSpec{Image: "sha256:aa", UserSpecifiedImage: "docker.io/library/web:1"},
		Envs:        []*runtimeapi.KeyValue{{Key: "KUBERNETES_PORT", Value: []byte("tcp://10.0.0.1:443")}},
		Labels:      map[string]string{"io.kubernetes.container.name": "server"},
		Annotations: map[string]string{"io.kubernetes.container.hash": "1"},
		LogPath:     "server/0.log",
		Mounts: []*runtimeapi.Mount{
			{ContainerPath: "/var/run/secrets/kubernetes.io/serviceaccount", HostPath: "/var/lib/kubelet/token", Readonly: true},
			{ContainerPath: "/etc/hosts", HostPath: "/var/lib/kubelet/etc-hosts", SelinuxRelabel: true},
			{ContainerPath: "/dev/termination-log", HostPath: "/var/lib/kubelet/termination"},
		},
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources: &runtimeapi.LinuxContainerResources{
				CpuPeriod: 100000, CpuShares: 2, OomScoreAdj: 1000,
				HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB"}, {PageSize: "1GB"}},
				Unified:        map[string]string{"memory.oom.group": "1"},
			},
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				NamespaceOptions: kubeletNamespaces(),
				RunAsUser:        &runtimeapi.Int64Value{Value: 0},
				Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined},
				MaskedPaths:      []string{"/proc/acpi", "/proc/kcore"},
				ReadonlyPaths:    []string{"/proc/sys", "/proc/sysrq-trigger"},
			},
		},
	}
}

// IDs maps 65536 ids from host on.
func IDs(host uint32) []*runtimeapi.IDMapping {
	return []*runtimeapi.IDMapping{{HostId: host, Length: 65536}}
}

// InUserNamespace puts a pod into a user namespace whose root is 100000.
func InUserNamespace(sandbox *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
	options := &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: IDs(100000), Gids: IDs(100000)}
	sandbox.Linux.SecurityContext.NamespaceOptions.UsernsOptions = options
	container.Linux.SecurityContext.NamespaceOptions.UsernsOptions = options
}

// MappedSandbox is KubeletSandbox in a user namespace.
func MappedSandbox() *runtimeapi.PodSandboxConfig {
	sandbox := KubeletSandbox()
	InUserNamespace(sandbox, KubeletContainer())
	return sandbox
}
