package provision_test

import (
	"testing"

	"github.com/berthrun/berth/internal/provision"
)

func TestShown(t *testing.T) {
	for source, want := range map[string]string{
		"/opt/a?b":                        "/opt/a?b",
		"https://a.example/x":             "https://a.example/x",
		"https://a.example/x?sig=hunter2": "https://a.example/x?…",
		"https://u:hunter2@a.example/x":   "https://u:xxxxx@a.example/x",
		"oci://a.example/x:1":             "oci://a.example/x:1",
		"https://a.example/%zz":           "https://a.example/%zz",
	} {
		ref := provision.AssetRef{Sources: []string{source}}
		if got := ref.Shown(); got != want {
			t.Errorf("%s is shown as %s, want %s", source, got, want)
		}
	}
}
