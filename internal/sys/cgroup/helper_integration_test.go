//go:build integration

package cgroup_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// TestParentOfHelpers: the parent goes with the last helper, except a slice, whose limits are systemd's.
func TestParentOfHelpers(t *testing.T) {
	require.Root(t)
	name := fmt.Sprintf("/berthtest%d", os.Getpid())
	for parent, stays := range map[string]bool{name: false, name + ".slice": true} {
		groups, err := cgroup.NewHelperGroups(parent, "a")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(groups.Dir()) })
		group, err := groups.New(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(group.Procs()); err != nil {
			t.Error(err)
		}
		if used, err := group.Used(); err != nil || used > 1<<20 {
			t.Errorf("without a process it uses %d bytes, %v", used, err)
		}
		group.Remove()
		groups.Close()
		if _, err := os.Stat(groups.Dir()); errors.Is(err, fs.ErrNotExist) == stays {
			t.Errorf("%s after the end: %v", parent, err)
		}
	}
}
