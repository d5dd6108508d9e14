package sysproc

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// TestOOMScoreLimit: a process that has the capability, and is in the host's user namespace, can lower
// scores. Its own score is the lowest otherwise.
func TestOOMScoreLimit(t *testing.T) {
	own, err := ReadCapabilities()
	if err != nil {
		t.Fatal(err)
	}
	namespace, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		t.Fatal(err)
	}
	lowers := slices.Contains(own.Effective, "CAP_SYS_RESOURCE") && slices.Contains(own.Bounding, "CAP_SYS_RESOURCE") &&
		namespace == "user:[4026531837]"
	child := exec.Command("sh", "-c", "echo 321 >/proc/self/oom_score_adj; echo ready; exec cat")
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make([]byte, len("ready"))
	if _, err := out.Read(ready); err != nil || string(ready) != "ready" {
		t.Errorf("%q, %v", ready, err)
	}
	limit, err := OOMScoreLimitOf(child.Process.Pid)
	if err != nil || limit.Own != 321 || limit.Lowers != lowers || (limit.Why == "") != lowers {
		t.Errorf("%+v, %v; want 321 and lowers %v", limit, err, lowers)
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	if err := child.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := OOMScoreLimitOf(child.Process.Pid); !errors.Is(err, errs.NotFound) {
		t.Errorf("of a process that has ended: %v", err)
	}
}

// TestOOMScoreLimitIsTheKernels: what the limit says is what the kernel does.
func TestOOMScoreLimitIsTheKernels(t *testing.T) {
	child := exec.Command("cat")
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(in.Close(), child.Wait()); err != nil {
			t.Error(err)
		}
	}()
	limit, err := OOMScoreLimitOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := SetOOMScoreAdjOf(child.Process.Pid, limit.Own); err != nil {
		t.Errorf("the process's own score: %v", err)
	}
	if limit.Lowers {
		if err := SetOOMScoreAdjOf(child.Process.Pid, max(limit.Own-1, -1000)); err != nil {
			t.Errorf("a lower score: %v", err)
		}
	}
	data, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil || strings.TrimSpace(string(data)) != strconv.Itoa(limit.Own) {
		t.Errorf("own score %q, %v; want %d", data, err, limit.Own)
	}
}
