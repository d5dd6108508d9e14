//go:build integration

package integration

import (
	"testing"

	"github.com/berthrun/berth/test/harness"
)

// TestTimerSlackOfContainers: the supervisor's threads have a timer slack of their own, which no process in a
// container inherits.
func TestTimerSlackOfContainers(t *testing.T) {
	for name, config := range map[string]string{
		"own init":     "",
		"libcontainer": "[runtime]\nown_init = false\n",
	} {
		t.Run(name, func(t *testing.T) {
			b := harness.Start(t, harness.Options{Config: config})
			const show = "cat /proc/self/timerslack_ns"
			pod := b.RunPod("slack", show+"; exec sleep 100000")
			b.Await("the container's line", func() bool {
				lines, err := harness.LogLines(pod.LogFile)
				if err == nil && len(lines) > 0 && lines[0] != "50000" {
					t.Fatalf("the container has a timer slack of %s ns, want the kernel's default", lines[0])
				}
				return err == nil && len(lines) > 0
			})
			if got := b.ExecOut(pod.Container, show); got != "50000" {
				t.Errorf("an exec has a timer slack of %s ns, want the kernel's default", got)
			}
			b.RemovePod(pod.Sandbox)
		})
	}
}
