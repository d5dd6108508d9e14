package check

import (
	"maps"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// checkMap judges labels and annotations: values are the user's own and may have
// many lines.
func checkMap(field string, m map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if key == "" || request.HasControl(key) {
			return fielderror.Invalid(field, "the key %q is empty or contains a control character", key)
		}
		if strings.ContainsRune(m[key], 0) {
			return fielderror.Invalid(field, "the value of %q contains a NUL", key)
		}
	}
	return nil
}
