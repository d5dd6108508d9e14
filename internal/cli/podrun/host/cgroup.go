package host

import (
	"context"
	"encoding/json"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/criclient"
)

// systemSlice is the parent cgroup of a pod without a kubelet.
const systemSlice = "system.slice"

// CgroupParent is the parent cgroup that a runtime needs for a pod: with the systemd driver
// containerd has no default. It is empty for runtimes that have one, and for those that do
// not report their driver.
func CgroupParent(ctx context.Context, conn *criclient.Conn) string {
	version, err := conn.Runtime.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil || version.GetRuntimeName() != "containerd" {
		return ""
	}
	config, err := conn.Runtime.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
	if err == nil {
		if linux := config.GetLinux(); linux != nil && linux.GetCgroupDriver() == runtimeapi.CgroupDriver_SYSTEMD {
			return systemSlice
		}
		return ""
	}
	// Before 2.0 there is no such call, and the verbose status has the configuration.
	status, err := conn.Runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err == nil && usesSystemd(status.GetInfo()["config"]) {
		return systemSlice
	}
	return ""
}

// usesSystemd reads containerd's configuration of CRI, as its status has it.
func usesSystemd(config string) bool {
	var c struct {
		Containerd struct {
			Default  string `json:"defaultRuntimeName"`
			Runtimes map[string]struct {
				Options struct {
					SystemdCgroup bool
				} `json:"options"`
			} `json:"runtimes"`
		} `json:"containerd"`
	}
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return false
	}
	return c.Containerd.Runtimes[c.Containerd.Default].Options.SystemdCgroup
}
