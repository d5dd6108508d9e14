//go:build integration && e2e

package trees

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/local"
)

// decision is a difference between berth and umoci that is decided. A row that no image needs fails the test.
type decision struct {
	feature, name, field string
	// berth is what berth has, if the field has other right values.
	berth, reason string
}

// Reasons.
const (
	sharedBelow = "a layer takes one name of a file of the layers below with it, not the others: those are in another directory of the overlay"
	ownTime     = "umoci changes the time after the layer has set it, when it deletes or makes what is in the directory"
	trusted     = "attributes that only the host's root may set are not those of an image"
	ofOverlay   = "attributes of overlays are the kernel's, and change what other layers show"
	emptyValue  = "umoci's reader of archives takes an empty value for none"
	year2400    = "umoci's clock ends in 2262"
)

var decided = []decision{
	{"a hard link to a shared file below", "a", "links", `["a" "b"]`, sharedBelow},
	{"a hard link to a shared file below", "b", "links", `["a" "b"]`, sharedBelow},
	{"a hard link to a shared file below", "d/e", "links", `["d/e" "n"]`, sharedBelow},
	{"a hard link to a shared file below", "n", "links", `["d/e" "n"]`, sharedBelow},
	{"files below a link of a lower layer", "real", "mtime", "2020-09-13T12:26:40", ownTime},
	{"a name and then its deletion", "d", "mtime", "2020-09-13T12:26:40", ownTime},
	{"opaque last", "d/sub", "mtime", "2020-09-13T12:26:40", ownTime},
	{"an empty attribute", "f", "xattrs", `user.empty=""`, emptyValue},
	{"trusted attributes", "f", "xattrs", "", trusted},
	{"trusted attributes", "s", "xattrs", "", trusted},
	{"attributes of the overlay", "d/f", "xattrs", "", ofOverlay},
	{"times", "2400", "mtime", "2400-01-01T00:00:00", year2400},
}

// refused are the images that berth refuses.
var refused = map[string]string{
	"a device that the kernel takes for a deletion": "character device 0:0 in a layer is a deletion of the overlay",
	"a device beyond Linux' numbers":                "the kernel drops the bits that it does not know, and the device becomes another",
	"a name of 256 bytes":                           "Linux has no longer names; umoci refuses it, too",
	"a path of 5000 bytes":                          "Linux opens no longer paths; umoci refuses it, too",
}

// byTar are the images that umoci refuses. They are compared with what GNU tar extracts: a layer without deletions is extracted
// as any archive.
var byTar = map[string]string{
	"a contiguous file":          "umoci does not know the type",
	"sparse hole format=gnu":     "umoci does not know the type",
	"sparse huge format=gnu":     "umoci does not know the type",
	"sparse hole format=oldgnu":  "umoci does not know the type",
	"sparse huge format=oldgnu":  "umoci does not know the type",
	"a user attribute of a link": "links cannot have such attributes; berth and tar leave them out",
}

// TestTreesOfLayers compares the images of the corpus with what umoci unpacks, over overlays and over copies.
func TestTreesOfLayers(t *testing.T) {
	features, used := corpus(t), map[decision]bool{}
	for _, snapshotter := range []local.Snapshotter{local.OverlaySnapshotter, local.NativeSnapshotter} {
		t.Run(string(snapshotter), func(t *testing.T) {
			s := store(t, snapshotter)
			for _, f := range features {
				t.Run(f.name, func(t *testing.T) { compareFeature(t, s, f, used) })
			}
		})
	}
	for _, d := range decided {
		if !used[d] {
			t.Errorf("no image differs as decided: %+v", d)
		}
	}
}

func compareFeature(t *testing.T, s *local.Images, f feature, used map[decision]bool) {
	archive := archiveOf(t, imageOf(t, f.layers, nil))
	root, err := imported(t, s, archive)
	if why := refused[f.name]; why != "" {
		if !errors.Is(err, errs.Invalid) {
			t.Errorf("berth must refuse the image, because %s: %v", why, err)
		}
		return
	}
	must(t, err)
	if f.small != "" {
		if n := allocated(t, filepath.Join(root, f.small)); n > 1<<20 {
			t.Errorf("%s takes %d bytes on disk", f.small, n)
		}
	}
	tree, err := umoci(t, layout(t, archive), "t")
	if byTar[f.name] != "" {
		if err == nil {
			t.Error("umoci unpacks the image now: compare with it")
		}
		tree = extracted(t, f.layers)
	} else {
		must(t, err)
	}
	report(t, f.name, differences(treeOf(t, root), treeOf(t, tree), began, describedBy(t, f.layers)), used)
}

// report fails the test with the differences that are not decided.
func report(t *testing.T, feature string, all []difference, used map[decision]bool) {
	t.Helper()
next:
	for _, d := range all {
		for _, known := range decided {
			if known.feature == feature && known.name == d.name && known.field == d.field && known.berth == d.berth {
				used[known] = true
				continue next
			}
		}
		t.Error(d)
	}
}
