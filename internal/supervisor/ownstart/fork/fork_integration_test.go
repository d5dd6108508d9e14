//go:build integration

package fork

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
)

// TestChildEndsWithoutReport: a first process that is killed before it reports fails the start at once. The
// start does not wait for it as for a process in a frozen cgroup.
func TestChildEndsWithoutReport(t *testing.T) {
	require.Root(t)
	exe, err := os.Open(require.Binary(t, "busybox")) // it ends: it has no applet of that name
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := New(exe, t.TempDir()).Start(t.Context(), &Request{Role: "none", Stdio: [3]*os.File{null, null, null}})
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil || errors.Is(err, errs.Unavailable) {
			t.Errorf("the start ended with %v", err)
		}
	case <-time.After(enterTimeout / 2):
		t.Error("the start still waits")
		<-ended
	}
}
