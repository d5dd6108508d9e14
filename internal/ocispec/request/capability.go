package request

import (
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/moby/sys/capability"
)

// AllCapabilities returns the names of the kernel's capabilities, in the kernel's order.
func AllCapabilities() []string {
	var names []string
	for _, c := range capability.ListKnown() {
		names = append(names, "CAP_"+strings.ToUpper(c.String()))
	}
	return names
}

// DefaultCapabilities is what a container has whose request names none.
func DefaultCapabilities() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW",
		"CAP_SETGID", "CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE",
		"CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
	}
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
