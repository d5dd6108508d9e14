//go:build integration && e2e

package differential

import "testing"

// randomByHand is how many random containers `make e2e` starts.
const randomByHand = 2000

// TestSameRandomContainersLong is TestSameRandomContainers with many more containers, and
// TestSameExecs with all forms in each kind of container.
func TestSameRandomContainersLong(t *testing.T) {
	p := newPair(t)
	p.execForms(t, 1)
	p.random(t, randomByHand)
}
