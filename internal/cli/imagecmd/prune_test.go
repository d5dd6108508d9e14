package imagecmd

import (
	"testing"

	"github.com/berthrun/berth/internal/image"
)

// TestBoundsOfAPrune: images that share layers do not free these twice.
func TestBoundsOfAPrune(t *testing.T) {
	// a and b share 50 bytes, c and d share 30, and a container keeps 7 of a removed image.
	use := &image.DiskUse{
		Images: []image.ImageUse{
			{ID: "a", Own: 1, Shared: 50}, {ID: "b", Own: 2, Shared: 50}, {ID: "c", Own: 10, Shared: 30}, {ID: "d", Own: 20, Shared: 30},
		},
		Kept: []image.LayerUse{{Bytes: 7}}, Unfinished: 100, Total: 100 + 7 + 1 + 2 + 50 + 10 + 20 + 30,
	}
	for name, c := range map[string]struct {
		removed []string
		want    freedBytes
		text    string
	}{
		"nothing":   {nil, freedBytes{}, "0B"},
		"one":       {[]string{"c"}, freedBytes{10, 40}, "10B to 40B"},
		"all":       {[]string{"a", "b", "c", "d"}, freedBytes{33, 113}, "33B to 113B"},
		"one stays": {[]string{"a", "b", "c"}, freedBytes{13, 63}, "13B to 63B"},
	} {
		removed := map[string]bool{}
		for _, id := range c.removed {
			removed[id] = true
		}
		if got := boundsOf(use, removed); got != c.want || got.String() != c.text {
			t.Errorf("%s: %+v (%s), want %+v", name, got, got, c.want)
		}
	}
}
