package resources

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berthrun/berth/internal/cli/podyaml/podspec"
)

// pageSizeOf reads hugepages-SIZE.
func pageSizeOf(name corev1.ResourceName) (size int64, ok bool) {
	text, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
	if !ok {
		return 0, false
	}
	quantity, err := resource.ParseQuantity(text)
	if err != nil || quantity.Value() < 1<<10 {
		return 0, false
	}
	return quantity.Value(), true
}

// pageSizeName is the kernel's name of a size: 2MB.
func pageSizeName(size int64) string {
	units := []string{"B", "KB", "MB", "GB", "TB"}
	n := 0
	for size >= 1<<10 && size%(1<<10) == 0 && n < len(units)-1 {
		size >>= 10
		n++
	}
	return fmt.Sprintf("%d%s", size, units[n])
}

// PageSize is the size in bytes of the pages of an emptyDir on huge pages: that of the medium, or
// the only one that the pod's containers ask for. It is 0 for other volumes.
func PageSize(pod *corev1.Pod, v *corev1.Volume) (int64, error) {
	medium := string(v.EmptyDir.Medium)
	if text, ok := strings.CutPrefix(medium, string(corev1.StorageMediumHugePagesPrefix)); ok {
		size, ok := pageSizeOf(corev1.ResourceName(corev1.ResourceHugePagesPrefix + text))
		if !ok {
			return 0, fmt.Errorf("%q is not a page size", text)
		}
		return size, nil
	}
	if medium != string(corev1.StorageMediumHugePages) {
		return 0, nil
	}
	sizes := map[int64]bool{}
	for _, c := range podspec.Containers(pod) {
		for name := range c.Resources.Limits {
			if size, ok := pageSizeOf(name); ok {
				sizes[size] = true
			}
		}
	}
	if len(sizes) != 1 {
		return 0, fmt.Errorf("containers ask for huge pages of %d sizes: HugePages needs one", len(sizes))
	}
	for size := range sizes {
		return size, nil
	}
	return 0, nil
}
