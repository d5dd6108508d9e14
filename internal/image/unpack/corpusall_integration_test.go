//go:build integration && e2e

package unpack

import "testing"

// TestLargeHostileLayers unpacks those layers of the corpus that take many seconds.
func TestLargeHostileLayers(t *testing.T) { hostileTable(t, hostileLayers(), true) }
