//go:build integration

package docker

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os/exec"
	"path"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/fakeengine"
	"github.com/berthrun/berth/internal/engine/docker/endings"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// TestKillWithoutTheEngine: SIGKILL ends the processes of a container also when the engine, which says
// that it runs, has lost its task or cannot kill it.
func TestKillWithoutTheEngine(t *testing.T) {
	tree, err := cgroup.Find()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		is     func(error) bool
	}{
		"the task is lost":    {fakeengine.Fail(http.StatusNotFound, "no such task"), func(err error) bool { return errors.Is(err, errs.NotFound) }},
		"it is not running":   {fakeengine.Fail(http.StatusConflict, "container is not running"), func(err error) bool { return errors.Is(err, errs.NotFound) }},
		"the engine fails":    {fakeengine.Fail(http.StatusInternalServerError, "did not answer"), func(err error) bool { return err != nil && !errors.Is(err, errs.NotFound) }},
		"the engine does not": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, func(err error) bool { return err == nil }},
	} {
		t.Run(name, func(t *testing.T) {
			engineID := hex.EncodeToString(random(t, 32))
			parent := "/berth-kill-" + engineID[:8]
			if err := tree.Make(path.Join(parent, engineID)); err != nil {
				t.Fatal(err)
			}
			group := tree.Paths(path.Join(parent, engineID))
			process := runIn(t, group)
			t.Cleanup(func() {
				ctx := context.WithoutCancel(t.Context())
				if err := errors.Join(group.Kill(ctx), tree.Paths(parent).Remove(ctx)); err != nil {
					t.Error(err)
				}
			})
			fake := fakeengine.Start(t, fakeengine.Script{Answers: map[string]http.HandlerFunc{
				"GET /containers/" + engineID + "/json": fakeengine.Text(fmt.Sprintf(
					`{"Id": %q, "Config": {}, "HostConfig": {}, "State": {"Status": "running", "Running": true, "Pid": %d}}`, engineID, process.Process.Pid)),
				"POST /containers/" + engineID + "/kill": c.answer,
			}})
			client, err := api.New(api.Options{Endpoint: fake.Endpoint})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			log := slog.New(slog.DiscardHandler)
			e := &Engine{client: client, log: log, objects: newObjects(client, "test", tree, log), unstarted: endings.NewUnstarted()}
			e.objects.put("c", object{engineID: engineID})
			if err := e.Signal(t.Context(), "c", syscall.SIGKILL, true); !c.is(err) {
				t.Errorf("Signal: %v", err)
			}
			if left := group.Processes(); len(left) > 0 {
				t.Errorf("its processes %v run on", left)
				_ = process.Process.Kill()
			}
			_ = process.Wait()
		})
	}
}

func random(t *testing.T, n int) []byte {
	t.Helper()
	data := make([]byte, n)
	if _, err := rand.Read(data); err != nil {
		t.Fatal(err)
	}
	return data
}

// runIn starts a process in a cgroup.
func runIn(t *testing.T, group cgroup.Paths) *exec.Cmd {
	t.Helper()
	join := ""
	for _, dir := range group {
		join += "echo $$ > " + filepath.Join(dir, "cgroup.procs") + "; "
	}
	process := exec.Command("sh", "-c", join+"echo in; exec sleep 1000") //nolint:gosec // a test's own text
	out, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return process
}
