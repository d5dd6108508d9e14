//go:build integration

package integration

import (
	"testing"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/crash"
)

// TestCrash is the short run of the crash test; test/e2e has the long one. BERTH_CRASH_SEED repeats
// an earlier run, BERTH_CRASH_ROUNDS sets the rounds of each kind, BERTH_CRASH_ACTORS how many pods
// are active at once.
func TestCrash(t *testing.T) {
	rounds := harness.Number(t, "BERTH_CRASH_ROUNDS", 6)
	crash.Run(t, crash.Options{
		Seed: crash.Seed(t),
		Rounds: map[crash.Kind]int{
			crash.Daemon: rounds, crash.Supervisor: rounds, crash.Keeper: rounds, crash.DaemonSupervisor: rounds, crash.All: rounds,
		},
		Actors: harness.Number(t, "BERTH_CRASH_ACTORS", 5),
	})
}

// TestUpgradeUnderLoad upgrades to the next version and back.
func TestUpgradeUnderLoad(t *testing.T) {
	require.Binary(t, "go")
	crash.Upgrade(t, crash.Options{
		Seed:   crash.Seed(t),
		Rounds: map[crash.Kind]int{crash.Supervisor: harness.Number(t, "BERTH_CRASH_ROUNDS", 1)},
		Actors: 4,
	})
}

// When keeper and supervisor die together, the daemon restarts them.
func TestDaemonStartsAKeeperAnew(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	b.NeedsPart(t, harness.Supervisors)
	pod := b.RunPod("alone", "while :; do echo line; sleep 0.1; done")
	b.Await("the first line", func() bool { lines, _ := harness.LogLines(pod.LogFile); return len(lines) > 0 })
	harness.Kill(t, b.KeeperPid(), b.SupervisorPid())
	if got := b.ExecOut(pod.Container, "echo here"); got != "here" {
		t.Errorf("exec answered %q", got)
	}
	before, _ := harness.LogLines(pod.LogFile)
	b.Await("more lines", func() bool { lines, _ := harness.LogLines(pod.LogFile); return len(lines) > len(before) })
}
