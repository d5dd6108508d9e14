//go:build integration

package integration

import (
	"os"
	"testing"

	"github.com/berthrun/berth/internal/supervisor/server/shim/shimtest"
)

// TestMain runs this program as a shim, too.
func TestMain(m *testing.M) {
	if shimtest.Ran() {
		return
	}
	os.Exit(m.Run())
}
