package resources

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/document"
)

// Validate refuses what only a device plugin could give.
func Validate(f *document.Faults, field string, r *corev1.ResourceRequirements, ofPod bool) {
	for which, list := range map[string]corev1.ResourceList{"limits": r.Limits, "requests": r.Requests} {
		for _, name := range slices.Sorted(maps.Keys(list)) {
			quantity, at := list[name], field+"."+which+"."+string(name)
			if quantity.Sign() < 0 {
				f.Add(at, "it is negative")
			}
			_, isPages := pageSizeOf(name)
			switch {
			case name == corev1.ResourceCPU, name == corev1.ResourceMemory, isPages, ofPod && name == pids:
			case name == corev1.ResourceEphemeralStorage && !ofPod:
			default:
				f.Add(at, "this resource is not honoured: nothing on this host provides it")
			}
			limit, limited := r.Limits[name]
			if which == "requests" && limited && quantity.Cmp(limit) > 0 {
				f.Add(at, "it is more than the limit of %s", limit.String())
			}
		}
	}
}
