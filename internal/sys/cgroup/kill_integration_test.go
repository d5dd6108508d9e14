//go:build integration

package cgroup

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
)

// realCgroup creates a cgroup that may hold some processes, and removes it at the end.
func realCgroup(t *testing.T, processes int) Paths {
	t.Helper()
	name := fmt.Sprintf("berth-test-kill-%d", os.Getpid())
	paths := Paths{"freezer": "/sys/fs/cgroup/freezer/" + name, "pids": "/sys/fs/cgroup/pids/" + name}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		paths = Paths{"": "/sys/fs/cgroup/" + name}
	}
	for _, dir := range paths {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	limited := paths["pids"] + paths[""]
	if err := os.WriteFile(filepath.Join(limited, "pids.max"), fmt.Append(nil, processes), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		if err := paths.Thaw(); err != nil {
			t.Error(err)
		}
		if err := os.WriteFile(filepath.Join(limited, "pids.max"), []byte("1"), 0); err != nil {
			t.Error(err)
		}
		if err := paths.Kill(ctx); err != nil {
			t.Error(err)
		}
		if err := paths.Remove(ctx); err != nil {
			t.Error(err)
		}
	})
	return paths
}

// A container that forks all the time is killed completely and soon.
func TestKillOfAForkBomb(t *testing.T) {
	require.Root(t)
	require.Binary(t, "perl")
	paths := realCgroup(t, 200)
	join := ""
	for _, dir := range paths.dirs() {
		join += "echo $$ > " + dir + "/cgroup.procs; "
	}
	// Each process forks, fails when there are too many, and tries again.
	bomb := exec.Command("sh", "-c", join+`exec perl -e '$SIG{CHLD} = "IGNORE"; while (1) { fork() }'`)
	if err := bomb.Start(); err != nil {
		t.Fatal(err)
	}
	pids := []int{}
	for deadline := time.Now().Add(30 * time.Second); len(pids) < 100 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		var err error
		if pids, err = paths.live(); err != nil {
			t.Fatal(err)
		}
	}
	if len(pids) < 100 {
		t.Fatalf("only %d processes fork, want 100", len(pids))
	}
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	if err := paths.Kill(ctx); err != nil {
		t.Errorf("%d processes that fork: %v", len(pids), err)
	}
	if rest, err := paths.live(); err != nil || len(rest) > 0 {
		t.Errorf("%d processes live, %v", len(rest), err)
	}
	if err := bomb.Wait(); err == nil {
		t.Error("the first process was not killed")
	}
}
