package layers

import (
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
)

// TestJobOfMounts: the helper of a snapshotter's layer knows the size of the layer, which decides how much memory it gets for the
// page cache, and the directories.
func TestJobOfMounts(t *testing.T) {
	const size = 1 << 30
	lowest, err := jobOfMounts([]mount.Mount{{Type: "bind", Source: "/new/files"}}, size)
	if err != nil || lowest.LayerSize != size || lowest.Upper != "/new/files" || len(lowest.Lower) > 0 {
		t.Errorf("the job of a lowest layer: %+v, %v", lowest, err)
	}
	above, err := jobOfMounts([]mount.Mount{{Type: "overlay", Options: []string{"lowerdir=/layers/2:/layers/1", "upperdir=/new/files"}}}, size)
	if err != nil || above.LayerSize != size || above.Upper != "/new/files" || above.LowerRoot != "/layers" || len(above.Lower) != 2 {
		t.Errorf("the job of a layer above: %+v, %v", above, err)
	}
}
