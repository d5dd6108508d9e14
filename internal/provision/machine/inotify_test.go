package machine

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/require"
)

// TestInotify: it reports how many instances are left, and closes those that it created.
func TestInotify(t *testing.T) {
	if os.Getenv("BERTH_TEST_FEW_WATCHERS") != "" {
		fewWatchers(t)
		return
	}
	require.Root(t) // a user namespace has a limit of its own
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestInotify$")
	again.Env = append(os.Environ(), "BERTH_TEST_FEW_WATCHERS=1")
	ids := []syscall.SysProcIDMap{{Size: 1}}
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	if out, err := again.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
		t.Errorf("%v\n%s", err, out)
	}
}

func fewWatchers(t *testing.T) {
	if err := os.WriteFile("/proc/sys/user/max_inotify_instances", []byte("3"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ atMost, want int }{{2, 2}, {8, 3}, {8, 3}} {
		if spare, err := (kernel{}).Inotify(c.atMost); err != nil || spare != c.want {
			t.Errorf("of %d watchers %d can be made (%v), want %d", c.atMost, spare, err, c.want)
		}
	}
}
