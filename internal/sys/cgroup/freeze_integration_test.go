//go:build integration

package cgroup

import (
	"fmt"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/require"
)

// relays are processes that a child of theirs replaces all the time. The first process reaps the
// exited ones.
const relays = `$SIG{CHLD} = "IGNORE"; syscall($ARGV[0], $ARGV[1], 1);
for (1..30) { if (fork() == 0) { while (1) { exit if fork() } } }
sleep 1000`

// TestKilledAtTheSameTime: a listed process is replaced before it can be killed. A single pass
// still kills all of them.
func TestKilledAtTheSameTime(t *testing.T) {
	require.Root(t)
	require.Binary(t, "perl")
	paths := realCgroup(t, 200)
	for range 8 { // a race: one of them is enough to fail
		first := startRelays(t, paths)
		if err := paths.killOnce(); err != nil {
			t.Fatal(err)
		}
		awaitNone(t, paths)
		_ = first.Wait() // its exit status does not matter
	}
}

// TestKillThawsAnEmptyCgroup: a supervisor that died between its freeze and its thaw leaves a
// frozen cgroup, perhaps without processes. libcontainer does not remove a container whose cgroup
// is frozen.
func TestKillThawsAnEmptyCgroup(t *testing.T) {
	require.Root(t)
	paths := realCgroup(t, 10)
	paths.freeze()
	if frozen, err := paths.Frozen(); err != nil || !frozen {
		t.Fatalf("frozen is %v, %v", frozen, err)
	}
	if err := paths.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if frozen, err := paths.Frozen(); err != nil || frozen {
		t.Errorf("after the kill frozen is %v, %v", frozen, err)
	}
}

// startRelays returns once the processes replace each other.
func startRelays(t *testing.T, paths Paths) (first *exec.Cmd) {
	t.Helper()
	join := ""
	for _, dir := range paths.dirs() {
		join += "echo $$ > " + dir + "/cgroup.procs; "
	}
	script := join + `exec perl -e "$1" ` + fmt.Sprint(unix.SYS_PRCTL, " ", unix.PR_SET_CHILD_SUBREAPER)
	first = exec.Command("sh", "-c", script, "sh", relays)
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for deadline := time.Now().Add(30 * time.Second); len(seen) < 60; time.Sleep(time.Millisecond) {
		pids, err := paths.live()
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range pids {
			seen[pid] = true
		}
		if time.Now().After(deadline) {
			t.Fatalf("only %d processes were there", len(seen))
		}
	}
	return first
}

func awaitNone(t *testing.T, paths Paths) {
	t.Helper()
	for deadline := time.Now().Add(require.Patience(2 * time.Second)); ; time.Sleep(time.Millisecond) {
		left, err := paths.live()
		if err != nil {
			t.Fatal(err)
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("processes live on: %v", left)
		}
	}
}
