//go:build integration

package server_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/supervisor"
)

// TestKillOfAWholeCgroup: the kernel kills a whole container for want of memory, as kubelets ask for, while execs start
// in it. The kernel also kills each process that shares the memory of one in the cgroup. The supervisor must not be one.
func TestKillOfAWholeCgroup(t *testing.T) {
	require.CgroupV2(t)
	h := newHost(t).serve()
	before := h.pid()
	for round := range 20 {
		id := fmt.Sprint("box", round)
		c := h.create(id, "sleep 1000", func(s *specs.Spec, _ *supervisor.CreateRequest) {
			s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: new(int64(64 << 20)), Swap: new(int64(64 << 20))}
			s.Linux.Resources.Unified = map[string]string{"memory.oom.group": "1"}
		})
		h.wantStarter(c, "own", "")
		if _, err := h.client.Start(h.ctx(), id); err != nil {
			t.Fatal(err)
		}
		started := h.execsUntil(id, 4, func() {
			// Less than the processes have: the kernel reclaims, and then kills.
			if err := os.WriteFile(filepath.Join(c.CgroupPaths[""], "memory.max"), []byte("0"), 0o600); err != nil {
				t.Error(err)
			}
		})
		if exit := h.wantExit(id, 137); !exit.OOMKilled {
			t.Errorf("exit %+v", exit)
		}
		if started < 10 {
			t.Errorf("%d execs were started", started)
		}
	}
	if after := h.pid(); after != before {
		t.Errorf("the supervisor is %d, and was %d", after, before)
	}
}

// execsUntil executes true in a container, in some goroutines, until it cannot. It calls f after ten executions, and
// returns how many there were.
func (h *host) execsUntil(id string, goroutines int, f func()) int64 {
	h.t.Helper()
	var group sync.WaitGroup
	var count atomic.Int64
	for range goroutines {
		group.Go(func() {
			for {
				if _, _, code, err := h.exec(id, "true"); err != nil || code != 0 {
					return
				}
				if count.Add(1) == 10 {
					f()
				}
			}
		})
	}
	group.Wait()
	return count.Load()
}
