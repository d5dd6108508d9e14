//go:build integration

package keep

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

func TestKeeperHasItsOwnCgroup(t *testing.T) {
	require.Root(t)
	h := newHost(t)
	name := fmt.Sprintf("berth-keeptest%d-supervisor", os.Getpid())
	keeper := h.keeperWith(nil, "idle", "cgroup="+name)
	s := h.status(ready)
	roots, err := cgroup.Roots()
	if err != nil || len(roots) == 0 {
		t.Fatalf("roots %v %v", roots, err)
	}
	for _, root := range roots {
		data, err := os.ReadFile(filepath.Join(root, name, "cgroup.procs"))
		members := strings.Fields(string(data))
		slices.Sort(members)
		want := []string{strconv.Itoa(s.Pid), strconv.Itoa(s.Supervisor)}
		slices.Sort(want)
		if err != nil || !slices.Equal(members, want) {
			t.Errorf("%s/%s holds %v, want %v: %v", root, name, members, want, err)
		}
	}
	// A keeper that took over is in the cgroup too, and removes it in the end.
	h.kill(keeper.Process.Pid)
	h.status(func(now Status) bool { return now.Ready && now.Pid == s.Supervisor })
	syscall.Kill(s.Supervisor, syscall.SIGTERM)
	h.gone(s.Supervisor)
	for _, root := range roots {
		if _, err := os.Stat(filepath.Join(root, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s/%s: %v", root, name, err)
		}
	}
}
