package sysmount

import (
	"strings"
	"testing"
)

// The level of a label contains commas, which must not end the mount option.
func TestOverlayLabel(t *testing.T) {
	o := Overlay{LowerRoot: "/l", Lower: []string{"a", "b"}, Label: "u:r:t:s0:c1,c2"}
	if got := o.options("/l"); !strings.HasSuffix(got, `,context="u:r:t:s0:c1,c2"`) {
		t.Errorf("options %s", got)
	}
	o.Label = ""
	if got := o.options("/l"); strings.Contains(got, "context") {
		t.Errorf("options %s", got)
	}
}
