//go:build integration && e2e

package integration

import "testing"

// TestDoctorWhilePodsComeAndGoLong is the long run of TestDoctorWhilePodsComeAndGo.
func TestDoctorWhilePodsComeAndGoLong(t *testing.T) {
	doctorBesidePods(t, 8, 200)
}

// TestPlantedFaultsSlow is TestPlantedFaults on machines where doctor waits for answers.
func TestPlantedFaultsSlow(t *testing.T) { plantFaults(t, true) }
