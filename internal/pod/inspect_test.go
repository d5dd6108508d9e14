package pod_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/podtest"
)

// While the engine does not answer, a verbose status has what the record has, and says why the rest is
// missing. Another fault of the engine is an error.
func TestVerboseStatusWithoutTheEngine(t *testing.T) {
	b := newBed(t, nil)
	id := b.mustStart(b.mustRun(b.SandboxConfig("web")), "main", b.Programs.Sleep)
	for _, c := range []struct {
		kind     error
		answered bool
	}{{errs.Unavailable, true}, {errs.Deadline, true}, {errs.Invalid, false}} {
		b.script.Kill()
		b.CloseDaemon(b.s)
		b.script = podtest.NewScript(func(_ int, name string) error {
			if name == "before engine.Inspect" {
				return fmt.Errorf("cannot connect: %w", c.kind)
			}
			return nil
		})
		b.s = b.Daemon(b.script)
		status, info, err := b.s.ContainerStatus(t.Context(), id, true)
		if !c.answered {
			if err == nil {
				t.Errorf("%v: no error", c.kind)
			}
			continue
		}
		var shown struct {
			SandboxID   string `json:"sandboxID"`
			EngineError string `json:"engineError"`
		}
		if err != nil || status.GetState() != running {
			t.Fatalf("%v: %v, %v", c.kind, status, err)
		}
		if err := json.Unmarshal([]byte(info["info"]), &shown); err != nil {
			t.Fatal(err)
		}
		if shown.SandboxID == "" || !strings.Contains(shown.EngineError, "cannot connect") {
			t.Errorf("%v: %s", c.kind, info["info"])
		}
	}
	b.restart()
	b.clear()
}
