package ocispec

import (
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/request"
)

// pingGroups is the sysctl with the groups that may ping.
const pingGroups = "net/ipv4/ping_group_range"

// withDefaults are the sysctls that the request asks for, and the defaults that it does not
// set. A name has two spellings.
func withDefaults(config *runtimeapi.PodSandboxConfig, defaults map[string]string) map[string]string {
	all := map[string]string{}
	for _, sysctls := range []map[string]string{defaults, config.GetLinux().GetSysctls()} {
		for name, value := range sysctls {
			all[request.SysctlFile(name)] = value
		}
	}
	return all
}

// NetSysctls are the sysctls of a pod's network namespace, by file below /proc/sys: those of
// the request, the defaults, and those that let a pod without capabilities serve low ports
// and ping, as other runtimes do. Kind Invalid for groups that the pod does not map.
func NetSysctls(config *runtimeapi.PodSandboxConfig, defaults map[string]string) (map[string]string, error) {
	sysctls, _ := request.SplitSysctls(withDefaults(config, defaults))
	user := request.UserNamespaceOf(config)
	if groups, asked := sysctls[pingGroups]; asked {
		var err error
		if sysctls[pingGroups], err = user.HostGroups(groups); err != nil {
			return nil, fmt.Errorf("config.linux.sysctls[%q]: %w", "net.ipv4.ping_group_range", err)
		}
	} else {
		sysctls[pingGroups] = user.AllGroups()
	}
	if _, asked := sysctls["net/ipv4/ip_unprivileged_port_start"]; !asked {
		sysctls["net/ipv4/ip_unprivileged_port_start"] = "0"
	}
	return sysctls, nil
}

// IPCSysctls are the sysctls of a pod's IPC namespace, by file below /proc/sys: those of the
// request and the defaults.
func IPCSysctls(config *runtimeapi.PodSandboxConfig, defaults map[string]string) map[string]string {
	_, sysctls := request.SplitSysctls(withDefaults(config, defaults))
	return sysctls
}
