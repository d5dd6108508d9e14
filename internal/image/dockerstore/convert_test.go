package dockerstore

import "testing"

// TestImageWithoutFiles: the kubelet refuses an image whose size is 0.
func TestImageWithoutFiles(t *testing.T) {
	s := &Images{}
	for size, want := range map[int64]int64{0: 1, 1: 1, 289: 289} {
		if got := s.made("sha256:1", nil, nil, size, details{}).Size; got != want {
			t.Errorf("an image whose layers have %d bytes has size %d, want %d", size, got, want)
		}
	}
}
