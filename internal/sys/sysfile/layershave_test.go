package sysfile

import "testing"

// TestLayersHave: a name is there as an overlay of the layers shows it. Deletions and opaque directories take privileges to make:
// the tests of package layers have those.
func TestLayersHave(t *testing.T) {
	high, low := treeOf(t, "d/x=2", "file=2", "link->d"), treeOf(t, "d/y=1", "file/in=1", "link/in=1", "only/z/w=1")
	for name, want := range map[string]bool{
		"d": true, "d/x": true, "d/y": true, "d/z": false, "file": true, "file/in": false, "link": true, "link/x": false, "link/in": false,
		"only/z/w": true, "only/z/v": false, "none/x": false, "d/x/y": false,
	} {
		if has, err := LayersHave([]string{high, low}, name); err != nil || has != want {
			t.Errorf("%s: %v, %v", name, has, err)
		}
	}
}
