package tree

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
)

// TestElementsAreBounded: a list in a document may take much more memory than the document.
func TestElementsAreBounded(t *testing.T) {
	for _, list := range []string{"manifests", "layers", "annotations"} {
		for _, element := range []string{"0", "{}", "null"} {
			document := `{"` + list + `":[` + element + strings.Repeat(","+element, MaxElements+1) + `]}`
			r := Reader{Content: &documents{left: [][]byte{[]byte(document)}}, Platform: platforms.Default()}
			target := imagespec.Descriptor{MediaType: imagespec.MediaTypeImageIndex, Digest: digest.FromString("x"), Size: 1}
			_, err := r.Read(t.Context(), "x", target, func(context.Context, imagespec.Descriptor) error { return nil })
			if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "elements") {
				t.Errorf("%s of %s: %v", list, element, err)
			}
		}
	}
}
