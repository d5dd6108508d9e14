//go:build integration && e2e

package integration

import "testing"

// TestSystemPathsOfImagesLong is TestSystemPathsOfImages with every image.
func TestSystemPathsOfImagesLong(t *testing.T) {
	systemPathsOfImages(t, func() bool { return true })
}
