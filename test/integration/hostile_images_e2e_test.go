//go:build integration && e2e

package integration

import "testing"

// TestLargeHostileArchivesOfImages imports those archives that take long to make.
func TestLargeHostileArchivesOfImages(t *testing.T) {
	hostileImages(t, append(savedImages(), layoutsOfImages()...), true)
}
