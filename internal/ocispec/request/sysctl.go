package request

import (
	"strings"
)

// The namespaces that a pod's sysctls belong to.
const (
	SysctlNet = "network"
	SysctlIPC = "ipc"
)

// SysctlNamespace returns the namespace that a sysctl belongs to, "" for a sysctl that pods
// cannot set. The name uses dots or slashes, as sysctl(8) takes them.
func SysctlNamespace(name string) string {
	file := SysctlFile(name)
	switch {
	case strings.HasPrefix(file, "net/"):
		return SysctlNet
	case strings.HasPrefix(file, "fs/mqueue/"), file == "kernel/sem", file == "kernel/shm_rmid_forced",
		file == "kernel/shmall", file == "kernel/shmmax", file == "kernel/shmmni",
		file == "kernel/msgmax", file == "kernel/msgmnb", file == "kernel/msgmni":
		return SysctlIPC
	}
	return ""
}

// SysctlFile returns the path of a sysctl below /proc/sys. Whichever of dot and
// slash comes first separates; the other one then stands for a dot.
func SysctlFile(name string) string {
	if i := strings.IndexAny(name, "./"); i < 0 || name[i] == '/' {
		return name
	}
	return strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return r
	}, name)
}

// SplitSysctls sorts a sandbox's sysctls by the namespace that they are set in, as
// file below /proc/sys to value.
func SplitSysctls(sysctls map[string]string) (net, ipc map[string]string) {
	net, ipc = map[string]string{}, map[string]string{}
	for name, value := range sysctls {
		switch SysctlNamespace(name) {
		case SysctlNet:
			net[SysctlFile(name)] = value
		case SysctlIPC:
			ipc[SysctlFile(name)] = value
		}
	}
	return net, ipc
}
