//go:build integration && e2e

package cni_test

import "testing"

// TestFaultMatrix: each plugin of a chain has each fault at ADD and at DEL, and each way to go on
// follows: 648 cases.
func TestFaultMatrix(t *testing.T) { testFaults(t, faultMatrix(false)) }

// TestFaultMatrixInProcess: the same where all plugins but the one with the fault run in process.
func TestFaultMatrixInProcess(t *testing.T) { testFaults(t, faultMatrix(true)) }

// faultMatrix is each plugin, verb and fault with what may follow.
func faultMatrix(inProcess bool) (all []plantedFault) {
	for _, plugin := range chainOfPlugins {
		for _, verb := range []string{"ADD", "DEL"} {
			for _, fault := range faultNames {
				for _, then := range thenNames {
					all = append(all, plantedFault{plugin, verb, fault, then, inProcess})
				}
			}
		}
	}
	return all
}
