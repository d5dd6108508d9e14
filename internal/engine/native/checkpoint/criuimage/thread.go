package criuimage

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Thread is what the kernel says of a restored thread.
type Thread struct {
	// UIDs and GIDs are the real, effective, saved and file system's.
	UIDs, GIDs, Groups                                   []uint32
	Inheritable, Permitted, Effective, Bounding, Ambient uint64
	// Filters is true with a seccomp filter.
	NoNewPrivs, Filters bool
	// Label is that of the security module, "" without one.
	Label string
}

// Within returns an error when a thread may do more than a request allows.
func (t *Thread) Within(spec *specs.Spec) error {
	r := rightsOf(spec)
	for _, id := range t.UIDs {
		if id != r.uid && !r.anyUID {
			return fmt.Errorf("its user is %d", id)
		}
	}
	for _, id := range slices.Concat(t.GIDs, t.Groups) {
		if !slices.Contains(r.groups, id) && !r.anyGID {
			return fmt.Errorf("it has the group %d", id)
		}
	}
	for _, each := range []struct {
		kind         string
		set, allowed uint64
	}{
		{"permitted", t.Permitted, r.permitted},
		{"effective", t.Effective, r.permitted},
		{"inheritable", t.Inheritable, r.inheritable},
		{"bounding", t.Bounding, r.bounding},
		{"ambient", t.Ambient, r.ambient},
	} {
		if more := each.set &^ each.allowed; more != 0 {
			return fmt.Errorf("it has the %s capabilities %#x", each.kind, more)
		}
	}
	switch {
	case r.noNewPrivs && !t.NoNewPrivs:
		return fmt.Errorf("it may get new privileges")
	case spec.Linux.Seccomp != nil && !t.Filters:
		return fmt.Errorf("it has no seccomp filter")
	case r.profile != "" && t.Label != r.profile && !strings.HasPrefix(t.Label, r.profile+" ("):
		return fmt.Errorf("its security label is %q, not %q", t.Label, r.profile)
	}
	return nil
}

// LimitOf returns the highest hard limit of a resource that a request allows.
func LimitOf(spec *specs.Spec, limits Limits, resource int) uint64 {
	for _, asked := range spec.Process.Rlimits {
		if asked.Type == limitName(resource) {
			return asked.Hard
		}
	}
	return limits(resource)
}
