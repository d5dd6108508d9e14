//go:build integration

package integration

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestProbesOfAHundredContainers: an exec probe costs berth no more CPU time in a hundred
// containers than in two, and berth is idle between probes. On a node with many probes the CPU time
// of the runtime itself matters.
func TestProbesOfAHundredContainers(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	var pods, containers []string
	grow := func(to int) {
		for len(containers) < to {
			config := b.Sandbox(fmt.Sprintf("probed-%d", len(pods)))
			sandbox := b.RunSandbox(config)
			pods = append(pods, sandbox)
			for i := range min(10, to-len(containers)) {
				id := b.Create(sandbox, b.Container(fmt.Sprintf("c%d", i), "exec sleep 100000"), config)
				b.StartContainer(id)
				containers = append(containers, id)
			}
		}
	}
	const count = 200
	probe := func() (each time.Duration) {
		probeAll(b, containers[:2], 20) // berth creates now what it creates once
		before := ownCPU(t, b)
		probeAll(b, containers, count)
		return (ownCPU(t, b) - before) / count
	}
	grow(2)
	few := probe()
	grow(100)
	many := probe()
	t.Logf("CPU time of a probe: %v with 2 containers, %v with %d", few, many, len(containers))
	if many > 2*few {
		t.Errorf("a probe takes %v of CPU time with %d containers, and %v with 2", many, len(containers), few)
	}
	const rest = 3 * time.Second
	var idle time.Duration
	b.Await("berth to rest after the probes", func() bool {
		before := ownCPU(t, b)
		time.Sleep(rest)
		idle = ownCPU(t, b) - before
		return idle < rest/10
	})
	t.Logf("between probes it takes %v in %v", idle, rest)
	for _, sandbox := range pods {
		b.RemovePod(sandbox)
	}
}

// probeAll runs a command count times, ten at a time, in one container after the other.
func probeAll(b *harness.Berth, containers []string, count int) {
	b.T.Helper()
	var group sync.WaitGroup
	for worker := range 10 {
		group.Go(func() {
			for i := worker; i < count; i += 10 {
				answer, err := b.Runtime.ExecSync(b.Ctx(), &runtimeapi.ExecSyncRequest{
					ContainerId: containers[i%len(containers)], Cmd: []string{"/bin/true"}, Timeout: 60,
				})
				if err != nil || answer.ExitCode != 0 {
					b.T.Errorf("probe: %v, %v", answer, err)
				}
			}
		})
	}
	group.Wait()
}

// ownCPU is the CPU time of berth's processes and of the children that they have waited for.
func ownCPU(t *testing.T, b *harness.Berth) (sum time.Duration) {
	t.Helper()
	for _, pid := range []int{b.DaemonPid(), b.SupervisorPid(), b.KeeperPid()} {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		// utime, stime, cutime and cstime are the 14th to 17th field; the second has spaces.
		fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
		for _, field := range fields[11:15] {
			ticks, err := strconv.ParseInt(string(field), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	return sum
}
