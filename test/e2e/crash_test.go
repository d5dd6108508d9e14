//go:build e2e

package e2e

import (
	"testing"

	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/crash"
)

// TestCrashLong is the crash test of test/integration at length: every kind of kill many times, and
// every stage of a job hit twice.
func TestCrashLong(t *testing.T) {
	crash.Run(t, crash.Options{
		Seed: crash.Seed(t),
		Rounds: map[crash.Kind]int{
			crash.Daemon: 50, crash.Supervisor: 50, crash.Keeper: 50, crash.DaemonSupervisor: 50, crash.All: 20,
		},
		EachStage: 2,
		Actors:    5,
	})
}

// TestUpgradeLong upgrades to the next version and back ten times. BERTH_CRASH_ROUNDS and BERTH_CRASH_ACTORS set other
// numbers.
func TestUpgradeLong(t *testing.T) {
	crash.Upgrade(t, crash.Options{
		Seed:   crash.Seed(t),
		Rounds: map[crash.Kind]int{crash.Supervisor: harness.Number(t, "BERTH_CRASH_ROUNDS", 10)},
		Actors: harness.Number(t, "BERTH_CRASH_ACTORS", 5),
	})
}
