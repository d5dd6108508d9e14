package finish

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPrepareOutside: the process has the OOM score, which it need not set itself, and its limits are not
// lowered: it sets them, and may need more until then.
func TestPrepareOutside(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	pid := cmd.Process.Pid
	var before, after unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Fatal(err)
	}
	p := &Process{OOMScoreAdj: new(900), Rlimits: []Rlimit{{Kind: unix.RLIMIT_NOFILE, Soft: 1, Hard: before.Max - 1}}}
	if err := p.PrepareOutside(pid); err != nil {
		t.Fatal(err)
	}
	score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
	if err != nil || strings.TrimSpace(string(score)) != "900" || p.OOMScoreAdj != nil {
		t.Errorf("the process has OOM score %q, the order %v, %v", score, p.OOMScoreAdj, err)
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &after); err != nil || after != before {
		t.Errorf("the limit of files became %+v, was %+v: %v", after, before, err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	p.OOMScoreAdj = new(1)
	if err := p.PrepareOutside(pid); err == nil {
		t.Error("a process that has ended was prepared")
	}
}
