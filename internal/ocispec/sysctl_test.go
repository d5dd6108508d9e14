package ocispec

import (
	"maps"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/request"
)

// A request overrides a default, with any spelling of the name.
func TestDefaultSysctls(t *testing.T) {
	config := &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{Sysctls: map[string]string{"net/core/somaxconn": "2"}}}
	got, err := NetSysctls(config, map[string]string{"net.core.somaxconn": "1", "net.ipv4.ip_unprivileged_port_start": "80", "kernel.shmmax": "5"})
	want := map[string]string{"net/core/somaxconn": "2", "net/ipv4/ip_unprivileged_port_start": "80", pingGroups: (*request.UserNamespace)(nil).AllGroups()}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}
