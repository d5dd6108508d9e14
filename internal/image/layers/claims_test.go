package layers

import (
	"maps"
	"testing"
)

// TestClaims: of images that are pulled together, one prepares a snapshot for a layer, and the next one after that does again.
func TestClaims(t *testing.T) {
	var c claims
	first, release := c.take([]string{"base", "one"})
	if want := map[string]bool{"base": true, "one": true}; !maps.Equal(first, want) {
		t.Errorf("the first image prepares %v, want %v", first, want)
	}
	second, releaseSecond := c.take([]string{"base", "two"})
	if want := map[string]bool{"two": true}; !maps.Equal(second, want) {
		t.Errorf("the second image prepares %v, want %v", second, want)
	}
	releaseSecond()
	release()
	if third, _ := c.take([]string{"base"}); !third["base"] {
		t.Error("no image prepares the layer after the others have ended")
	}
}
