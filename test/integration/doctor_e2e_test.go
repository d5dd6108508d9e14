//go:build integration && e2e

package integration

import "testing"

// TestDoctorWhilePodsComeAndGoLong is the long run of TestDoctorWhilePodsComeAndGo.
func TestDoctorWhilePodsComeAndGoLong(t *testing.T) {
	doctorBesidePods(t, 8, 200)
}
