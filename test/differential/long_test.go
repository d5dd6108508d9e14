//go:build integration && e2e

package differential

import "testing"

// randomByHand is how many random containers `make e2e` starts.
const randomByHand = 2000

// TestSameContainersLong starts the whole corpora in both supervisors.
func TestSameContainersLong(t *testing.T) {
	p := newPair(t)
	p.cases(t, "c", corpus(), 1)
	p.cases(t, "m", mappedCorpus(), 1)
	p.cases(t, "a", attackCases(), 1)
}

// TestSameExecsLong executes processes of all forms in each kind of container.
func TestSameExecsLong(t *testing.T) {
	newPair(t).execForms(t, 1)
}

// TestSameRandomContainersLong is TestSameRandomContainers with many more containers.
func TestSameRandomContainersLong(t *testing.T) {
	newPair(t).random(t, randomByHand)
}

// TestSoundRacesLong is TestSoundRaces and TestSoundExecRaces with many more rounds.
func TestSoundRacesLong(t *testing.T) {
	p := newPair(t)
	p.races(t, 50*roundsInCI)
	p.execRaces(t, 100*roundsInCI)
}
