package sysproc

import "testing"

func TestAtLeast(t *testing.T) {
	for release, want := range map[string]bool{
		"6.15.0": true, "6.15-rc1": true, "7.0.1": true, "6.18.4-generic": true,
		"6.14.9": false, "6.1.0-56-cloud-amd64": false, "5.99": false, "": false, "linux": false,
	} {
		if got := atLeast(release, 6, 15); got != want {
			t.Errorf("%q at least 6.15: %v, want %v", release, got, want)
		}
	}
}

func TestParseExitRequiresAWholeExit(t *testing.T) {
	for _, b := range [][]byte{nil, make([]byte, exitEnd-1), make([]byte, exitEnd)} {
		if _, ok := parseExit(b); ok {
			t.Errorf("%d bytes of nothing are an exit", len(b))
		}
	}
}
