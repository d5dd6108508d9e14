//go:build integration && e2e

package ociruntime

import (
	"slices"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// TestExecSideBySide prints how long the two ways take to run "true", in turns, also after a pause, and the
// time of the CPU that they need.
func TestExecSideBySide(t *testing.T) {
	b := newBench(t)
	_, s := b.createWith("speed", ordinary(t, b))
	if err := b.r.Start(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	ways := b.ways()
	took := make(map[string][]time.Duration)
	for i := range 120 {
		for way, start := range ways {
			if i >= 60 {
				way += " after 20 ms"
				time.Sleep(20 * time.Millisecond)
			}
			before, cpu := time.Now(), cpuTime(t)
			pid, err := start(t, &Exec{ContainerID: "speed", Process: &specs.Process{Args: []string{"/bin/busybox", "true"}, Cwd: "/"}})
			if err != nil {
				t.Fatal(err)
			}
			begun := time.Since(before)
			waitPid(t, pid)
			took[way] = append(took[way], time.Since(before))
			took[way+", begun"] = append(took[way+", begun"], begun)
			took[way+", CPU"] = append(took[way+", CPU"], cpuTime(t)-cpu)
		}
	}
	for way, all := range took {
		slices.Sort(all)
		t.Logf("%-32s p10 %v, p50 %v, p90 %v", way, all[len(all)/10], all[len(all)/2], all[len(all)*9/10])
	}
}

// cpuTime is what this process and its children have used.
func cpuTime(t *testing.T) (sum time.Duration) {
	t.Helper()
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var usage unix.Rusage
		if err := unix.Getrusage(who, &usage); err != nil {
			t.Fatal(err)
		}
		sum += time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	return sum
}
