package sysproc

import (
	"fmt"
	"slices"
	"strings"

	"github.com/moby/sys/capability"
)

// OwnCapabilities are the capabilities of this process, as names of the kernel's ("CAP_CHOWN"),
// in the kernel's order.
type OwnCapabilities struct {
	// Bounding is what its children can have at most, Effective what it may use itself.
	Bounding, Effective []string
}

// ReadCapabilities returns the capabilities of this process. Those that package capability does
// not know are left out.
func ReadCapabilities() (OwnCapabilities, error) {
	caps, err := load(0)
	if err != nil {
		return OwnCapabilities{}, fmt.Errorf("cannot read our own capabilities: %w", err)
	}
	var own OwnCapabilities
	for _, c := range capability.ListKnown() {
		if caps.Get(capability.BOUNDING, c) {
			own.Bounding = append(own.Bounding, capabilityName(c))
		}
		if caps.Get(capability.EFFECTIVE, c) {
			own.Effective = append(own.Effective, capabilityName(c))
		}
	}
	return own, nil
}

// load reads the capabilities of a process, those of this one if pid is 0.
func load(pid int) (capability.Capabilities, error) {
	caps, err := capability.NewPid2(pid)
	if err == nil {
		err = caps.Load()
	}
	return caps, err
}

// IsCapability reports whether a name is that of a capability that we know ("CAP_CHOWN").
func IsCapability(name string) bool {
	return slices.ContainsFunc(capability.ListKnown(), func(c capability.Cap) bool { return name == capabilityName(c) })
}

func capabilityName(c capability.Cap) string { return "CAP_" + strings.ToUpper(c.String()) }
