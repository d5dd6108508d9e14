package ocispec

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"strconv"
	"strings"
	"unicode"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CheckSandbox judges a sandbox's request before anything is made for it: kind
// Invalid for values that are wrong, Unsupported for demands that berth does not
// honour yet. Neutral values of both sorts pass.
func CheckSandbox(config *runtimeapi.PodSandboxConfig) error {
	if config == nil {
		return invalid("config", "is missing")
	}
	return errors.Join(
		checkPodMetadata(config.GetMetadata()),
		checkHostname(config.GetHostname()),
		checkLogDirectory(config.GetLogDirectory()),
		checkDNS(config.GetDnsConfig()),
		checkPorts(config),
		checkMap("config.labels", config.GetLabels()),
		checkMap("config.annotations", config.GetAnnotations()),
		checkCgroupns(config.GetAnnotations(), sandboxSecurityContext(config).GetPrivileged(), hasUserNamespace(config)),
		checkSandboxLinux(config),
		checkNoWindows(config.GetWindows() != nil),
	)
}

func checkPodMetadata(metadata *runtimeapi.PodSandboxMetadata) error {
	if metadata == nil {
		return invalid("config.metadata", "is missing")
	}
	for _, f := range []struct {
		name, value string
		required    bool
	}{
		{"name", metadata.GetName(), true},
		{"namespace", metadata.GetNamespace(), false},
		{"uid", metadata.GetUid(), false},
	} {
		if err := checkName("config.metadata."+f.name, f.value, f.required); err != nil {
			return err
		}
		if strings.ContainsAny(f.value, ";=") {
			return invalid("config.metadata."+f.name, "%q contains ; or =, which would forge arguments of CNI plugins", f.value)
		}
	}
	// Directories of a kubelet's volumes have it as their name.
	if uid := metadata.GetUid(); strings.ContainsAny(uid, "/ ") {
		return invalid("config.metadata.uid", "%q contains a slash or a space", uid)
	}
	return nil
}

// maxName is the longest name, namespace or uid, as Kubernetes has it.
const maxName = 253

// checkName judges names of pods and containers. They are shown, and parts of no path.
func checkName(field, value string, required bool) error {
	if required && value == "" {
		return invalid(field, "is missing")
	}
	if len(value) > maxName {
		return invalid(field, "is longer than %d bytes", maxName)
	}
	if hasControl(value) || ClimbingName(value) {
		return invalid(field, "%q contains a control character, or . or .. between slashes", value)
	}
	return nil
}

// ClimbingName tells of a name that would lead elsewhere if somebody took it for a path.
func ClimbingName(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == "." || part == ".." {
			return true
		}
	}
	return false
}

// maxHostname is the kernel's limit.
const maxHostname = 64

func checkHostname(hostname string) error {
	if len(hostname) > maxHostname {
		return invalid("config.hostname", "%q is longer than %d bytes", hostname, maxHostname)
	}
	if hasControl(hostname) || strings.ContainsAny(hostname, " /#") {
		return invalid("config.hostname", "%q contains a character that a host name cannot have", hostname)
	}
	return nil
}

func checkLogDirectory(dir string) error {
	if err := checkLength("config.log_directory", dir); err != nil {
		return err
	}
	if dir != "" && (!path.IsAbs(dir) || hasControl(dir) || hasDotDot(dir)) {
		return invalid("config.log_directory", "%q is not an absolute path", dir)
	}
	return nil
}

// Bounds of the lists of resolv.conf and of their words: of the names of domains, far
// above what a resolver reads.
const (
	maxDNSWords = 1024
	maxDNSWord  = 255
)

// checkDNS keeps each value a single word of a line of resolv.conf.
func checkDNS(dns *runtimeapi.DNSConfig) error {
	for _, list := range []struct {
		name   string
		values []string
	}{
		{"servers", dns.GetServers()},
		{"searches", dns.GetSearches()},
		{"options", dns.GetOptions()},
	} {
		if n := len(list.values); n > maxDNSWords {
			return invalid("config.dns_config."+list.name, "%d are more than %d", n, maxDNSWords)
		}
		for i, value := range list.values {
			if len(value) > maxDNSWord {
				return invalid(index("config.dns_config."+list.name, i, ""), "is longer than %d bytes", maxDNSWord)
			}
			if value == "" || hasControl(value) || strings.ContainsFunc(value, unicode.IsSpace) {
				return invalid(index("config.dns_config."+list.name, i, ""), "%q is not one word", value)
			}
		}
	}
	return nil
}

// maxPorts bounds the ports of a pod: each one once.
const maxPorts = 65535

func checkPorts(config *runtimeapi.PodSandboxConfig) error {
	if n := len(config.GetPortMappings()); n > maxPorts {
		return invalid("config.port_mappings", "%d are more than %d", n, maxPorts)
	}
	for i, port := range config.GetPortMappings() {
		if _, ok := runtimeapi.Protocol_name[int32(port.GetProtocol())]; !ok {
			return invalid(index("config.port_mappings", i, "protocol"), "unknown protocol %d", port.GetProtocol())
		}
		if n := port.GetContainerPort(); n < 0 || n > 65535 || n == 0 && port.GetHostPort() != 0 {
			return invalid(index("config.port_mappings", i, "container_port"), "%d is no port", n)
		}
		if n := port.GetHostPort(); n < 0 || n > 65535 {
			return invalid(index("config.port_mappings", i, "host_port"), "%d is no port", n)
		}
		if ip := port.GetHostIp(); ip != "" {
			if addr, err := netip.ParseAddr(ip); err != nil || addr.Zone() != "" || addr.IsMulticast() {
				return invalid(index("config.port_mappings", i, "host_ip"), "%q is no address of a host", ip)
			}
		}
	}
	return nil
}

func checkSandboxLinux(config *runtimeapi.PodSandboxConfig) error {
	linux := config.GetLinux()
	security := linux.GetSecurityContext()
	if err := checkLength("config.linux.cgroup_parent", linux.GetCgroupParent()); err != nil {
		return err
	}
	if parent := linux.GetCgroupParent(); hasControl(parent) || hasDotDot(parent) || strings.Contains(parent, ":") {
		return invalid("config.linux.cgroup_parent", "%q is no cgroup", parent)
	}
	return errors.Join(
		checkSandboxUser(security),
		checkNamespaces(security.GetNamespaceOptions(), true),
		checkSELinux(security.GetSelinuxOptions()),
		checkSeccomp(security.GetSeccomp(), oldSeccomp(security)),
		checkAppArmor(security.GetApparmor(), ""),
		checkSysctls(linux.GetSysctls(), security.GetNamespaceOptions()),
		CheckResources("config.linux.overhead", linux.GetOverhead()),
		CheckResources(FieldCreate, linux.GetResources()),
	)
}

func checkSandboxUser(security *runtimeapi.LinuxSandboxSecurityContext) error {
	const field = "config.linux.security_context."
	if security.GetRunAsGroup() != nil && security.GetRunAsUser() == nil {
		return invalid(field+"run_as_group", "is specified without run_as_user")
	}
	return errors.Join(
		checkIDValue(field+"run_as_user", security.GetRunAsUser()),
		checkIDValue(field+"run_as_group", security.GetRunAsGroup()),
		checkGroups(security.GetSupplementalGroups(), security.GetSupplementalGroupsPolicy()),
	)
}

// The namespaces that a pod's sysctls belong to.
const (
	sysctlNet = "network"
	sysctlIPC = "ipc"
)

// sysctlNamespace tells which namespace a sysctl belongs to, "" when it is none of
// a pod's. The name uses dots or slashes, as sysctl(8) takes them.
func sysctlNamespace(name string) string {
	file := SysctlFile(name)
	switch {
	case strings.HasPrefix(file, "net/"):
		return sysctlNet
	case strings.HasPrefix(file, "fs/mqueue/"), file == "kernel/sem", file == "kernel/shm_rmid_forced",
		file == "kernel/shmall", file == "kernel/shmmax", file == "kernel/shmmni",
		file == "kernel/msgmax", file == "kernel/msgmnb", file == "kernel/msgmni":
		return sysctlIPC
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
		switch sysctlNamespace(name) {
		case sysctlNet:
			net[SysctlFile(name)] = value
		case sysctlIPC:
			ipc[SysctlFile(name)] = value
		}
	}
	return net, ipc
}

// maxSysctls is far above what a namespace has.
const maxSysctls = 4096

func checkSysctls(sysctls map[string]string, namespaces *runtimeapi.NamespaceOption) error {
	if len(sysctls) > maxSysctls {
		return invalid("config.linux.sysctls", "%d are more than %d", len(sysctls), maxSysctls)
	}
	named := map[string]string{} // each file's name
	for _, name := range sortedKeys(sysctls) {
		field := fmt.Sprintf("config.linux.sysctls[%q]", name)
		file := SysctlFile(name)
		if err := checkLength("config.linux.sysctls", file); err != nil {
			return err
		}
		if other, twice := named[file]; twice {
			return invalid(field, "is the same as %q", other)
		}
		named[file] = name
		if hasControl(name) || path.Clean(file) != file || hasDotDot(file) {
			return invalid(field, "is no sysctl")
		}
		if strings.ContainsAny(sysctls[name], "\n\x00") {
			return invalid(field, "the value %q has more than one line", sysctls[name])
		}
		mode := runtimeapi.NamespaceMode_POD
		namespace := sysctlNamespace(name)
		switch namespace {
		case sysctlNet:
			mode = namespaces.GetNetwork()
		case sysctlIPC:
			mode = namespaces.GetIpc()
		default:
			return invalid(field, "is not in a separate kernel namespace")
		}
		if mode == runtimeapi.NamespaceMode_NODE {
			return invalid(field, "not allowed in the host's %s namespace", namespace)
		}
	}
	return nil
}

// hasControl finds what would break a line or end a C string.
func hasControl(s string) bool {
	return strings.ContainsFunc(s, unicode.IsControl)
}

func hasDotDot(p string) bool {
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}

// checkMap judges labels and annotations: values are the user's own and may have
// many lines.
func checkMap(field string, m map[string]string) error {
	for _, key := range sortedKeys(m) {
		if key == "" || hasControl(key) {
			return invalid(field, "the key %q is empty or contains a control character", key)
		}
		if strings.ContainsRune(m[key], 0) {
			return invalid(field, "the value of %q contains a NUL", key)
		}
	}
	return nil
}

func checkNoWindows(present bool) error {
	if present {
		return unsupported("config.windows", "this is Linux")
	}
	return nil
}

// onlyOf reports whether s has no other characters than those of chars.
func onlyOf(s, chars string) bool { return strings.Trim(s, chars) == "" }

func isAll(s, chars string) bool { return s != "" && onlyOf(s, chars) }

func isRange(err error) bool { return errors.Is(err, strconv.ErrRange) }

// index spells the i-th element of a list, or a field of it.
func index(list string, i int, field string) string {
	name := list + "[" + strconv.Itoa(i) + "]"
	if field != "" {
		name += "." + field
	}
	return name
}
