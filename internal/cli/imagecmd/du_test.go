package imagecmd

import (
	"bytes"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/image"
)

// TestDiskUseNamesTheContainersOfRemovedImages: their layers stay until these containers are removed.
func TestDiskUseNamesTheContainersOfRemovedImages(t *testing.T) {
	one, two := strings.Repeat("1", 64), strings.Repeat("2", 64)
	var out bytes.Buffer
	err := diskUse(&out, &image.DiskUse{
		Images: []image.ImageUse{{ID: "sha256:" + strings.Repeat("a", 64), Names: []string{"app:1"}, Containers: []string{one}}},
		Kept:   []image.LayerUse{{Chain: "sha256:" + strings.Repeat("b", 64), Bytes: 7, Containers: []string{one, two}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		removed := strings.HasPrefix(line, "(removed)")
		if got := strings.HasSuffix(line, "2: 111111111111 222222222222\n"); got != removed {
			t.Errorf("%q", line)
		}
	}
	if !strings.Contains(out.String(), "(removed)") {
		t.Error(out.String())
	}
}
