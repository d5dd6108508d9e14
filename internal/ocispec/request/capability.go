package request

import (
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
)

// AllCapabilities returns the names of the kernel's capabilities, each at its
// number.
func AllCapabilities() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID",
		"CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE",
		"CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK",
		"CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE",
		"CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE",
		"CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE",
		"CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG",
		"CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF",
		"CAP_CHECKPOINT_RESTORE",
	}
}

// DefaultCapabilities is what a container has when nobody says anything.
func DefaultCapabilities() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW",
		"CAP_SETGID", "CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE",
		"CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
	}
}

// CapabilityNames turns a bit mask of the kernel (CapBnd in /proc/PID/status) into
// names; bits without a name are left out.
func CapabilityNames(mask uint64) []string {
	var names []string
	for i, name := range AllCapabilities() {
		if mask&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// maxCapabilityNames bounds a list of names: every bit that a kernel can have, and
// ALL, twice.
const maxCapabilityNames = 130

// KernelCapabilities brings names as users write them ("net_admin") to the kernel's
// form; ALL stays.
func KernelCapabilities(field string, names []string) ([]string, error) {
	if len(names) > maxCapabilityNames {
		return nil, fielderror.Invalid(field, "%d names are more than the %d that there can be", len(names), maxCapabilityNames)
	}
	known := AllCapabilities()
	out := make([]string, 0, len(names))
	for _, name := range names {
		full := strings.ToUpper(name)
		if full != "ALL" && !strings.HasPrefix(full, "CAP_") {
			full = "CAP_" + full
		}
		if full != "ALL" && !slices.Contains(known, full) {
			return nil, fielderror.Invalid(field, "unknown capability %q", name)
		}
		out = append(out, full)
	}
	return out, nil
}

// AskedCapabilities are the changes that a request makes to the default capabilities, as
// CAP_ names or ALL.
type AskedCapabilities struct{ Add, Drop, Ambient []string }

// CapabilitiesOf reads the capabilities of a container's request. Kind Invalid for a name
// that is none.
func CapabilitiesOf(config *runtimeapi.ContainerConfig) (asked AskedCapabilities, err error) {
	const field = "config.linux.security_context.capabilities."
	names := Security(config).GetCapabilities()
	if asked.Add, err = KernelCapabilities(field+"add_capabilities", names.GetAddCapabilities()); err != nil {
		return AskedCapabilities{}, err
	}
	if asked.Drop, err = KernelCapabilities(field+"drop_capabilities", names.GetDropCapabilities()); err != nil {
		return AskedCapabilities{}, err
	}
	if asked.Ambient, err = KernelCapabilities(field+"add_ambient_capabilities", names.GetAddAmbientCapabilities()); err != nil {
		return AskedCapabilities{}, err
	}
	return asked, nil
}
