//go:build integration

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/docker/dockertest"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// byHand calls a Docker engine as people do with `docker`, behind berth's back.
type byHand struct {
	b    *harness.Berth
	http *http.Client
}

func newByHand(b *harness.Berth) *byHand {
	socket := strings.TrimPrefix(b.Docker.Endpoint, "unix://")
	h := &byHand{b: b, http: &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}}
	return h
}

// do makes one call, which has to succeed.
func (h *byHand) do(method, path string) []byte {
	h.b.T.Helper()
	req, err := http.NewRequestWithContext(h.b.Ctx(), method, "http://docker"+path, http.NoBody)
	if err != nil {
		h.b.T.Fatal(err)
	}
	answer, err := h.http.Do(req)
	if err != nil {
		h.b.T.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode >= 300 {
		h.b.T.Fatalf("docker: %s %s: %s %s %v", method, path, answer.Status, body, err)
	}
	return body
}

// idOf returns the engine's id of a container or a sandbox, "" if there is none.
func (h *byHand) idOf(id string) string {
	h.b.T.Helper()
	var found []struct{ ID string }
	filters := url.QueryEscape(fmt.Sprintf(`{"label":["run.berth.id=%s"]}`, id))
	if err := json.Unmarshal(h.do(http.MethodGet, "/containers/json?all=1&filters="+filters), &found); err != nil {
		h.b.T.Fatal(err)
	}
	if len(found) == 0 {
		return ""
	}
	return found[0].ID
}

// runs reports whether the engine runs a container.
func (h *byHand) runs(id string) bool {
	h.b.T.Helper()
	dockerID := h.idOf(id)
	if dockerID == "" {
		return false
	}
	var found struct{ State struct{ Running bool } }
	if err := json.Unmarshal(h.do(http.MethodGet, "/containers/"+dockerID+"/json"), &found); err != nil {
		h.b.T.Fatal(err)
	}
	return found.State.Running
}

// verb calls a container by one of docker's verbs.
func (h *byHand) verb(id, verb string) {
	h.b.T.Helper()
	h.do(http.MethodPost, "/containers/"+h.idOf(id)+"/"+verb)
}

func (h *byHand) remove(id string) {
	h.b.T.Helper()
	h.do(http.MethodDelete, "/containers/"+h.idOf(id)+"?force=1")
}

// endsOn7 exits with 7 on SIGTERM.
const endsOn7 = "trap 'exit 7' TERM; echo begun; while :; do sleep 0.05; done"

// runUntilBegun runs a pod, and returns once its program has its handler.
func runUntilBegun(b *harness.Berth, name, script string) harness.Pod {
	b.T.Helper()
	pod := b.RunPod(name, script)
	b.Await("its first line", func() bool { lines, _ := harness.LogLines(pod.LogFile); return len(lines) > 0 })
	return pod
}

// expect waits until a container is reported as exited, with a code and a reason, and removes its
// pod.
func (h *byHand) expect(pod harness.Pod, code int32, reason string) {
	h.b.T.Helper()
	status := h.b.AwaitExit(pod.Container)
	if status.GetExitCode() != code || status.GetReason() != reason || status.GetFinishedAt() == 0 ||
		(status.GetMessage() == "") != (reason == "Error") {
		h.b.T.Errorf("status %v, want code %d and reason %s", status, code, reason)
	}
	h.b.Await("the engine to run it no more", func() bool { return !h.runs(pod.Container) })
	if state := h.b.SandboxStatus(pod.Sandbox).GetState(); state != runtimeapi.PodSandboxState_SANDBOX_READY {
		h.b.T.Errorf("the sandbox is %v", state)
	}
	h.b.RemovePod(pod.Sandbox)
}

// TestContainersByHand: what people do to containers behind berth's back is reported as it is.
func TestContainersByHand(t *testing.T) {
	b := harness.Start(t, harness.Options{Docker: &dockertest.Options{}})
	h := newByHand(b)
	t.Run("stop", func(t *testing.T) {
		pod := runUntilBegun(b, "stopped", endsOn7)
		h.verb(pod.Container, "stop?t=30")
		h.expect(pod, 7, "Error")
	})
	t.Run("start after stop", func(t *testing.T) {
		pod := runUntilBegun(b, "started", endsOn7)
		h.verb(pod.Container, "stop?t=30")
		b.AwaitExit(pod.Container)
		h.verb(pod.Container, "start")
		h.expect(pod, 7, "Error")
	})
	t.Run("restart", func(t *testing.T) {
		pod := runUntilBegun(b, "restarted", endsOn7)
		h.verb(pod.Container, "restart?t=30")
		status := b.AwaitExit(pod.Container)
		if reason := status.GetReason(); reason != engine.ReasonRestarted && reason != "Error" { // the start may come later
			t.Errorf("status %v", status)
		}
		h.expect(pod, 7, status.GetReason())
	})
	t.Run("remove", func(t *testing.T) {
		pod := runUntilBegun(b, "removed", endsOn7)
		h.remove(pod.Container)
		h.expect(pod, 137, engine.ReasonRemoved)
	})
	t.Run("remove before its start", func(t *testing.T) {
		config := b.Sandbox("unstarted")
		pod := harness.Pod{Sandbox: b.RunSandbox(config)}
		pod.Container = b.Create(pod.Sandbox, b.Container("c", "true"), config)
		h.remove(pod.Container)
		h.expect(pod, 255, engine.ReasonRemoved)
	})
	t.Run("rename", func(t *testing.T) {
		pod := runUntilBegun(b, "renamed", endsOn7)
		h.verb(pod.Container, "rename?name=other")
		h.verb(pod.Sandbox, "rename?name=others-sandbox")
		if got := b.ExecOut(pod.Container, "echo here"); got != "here" {
			t.Errorf("exec: %q", got)
		}
		stop(b, pod.Container, 30)
		h.expect(pod, 7, "Error")
	})
	t.Run("pause", func(t *testing.T) {
		pod := runUntilBegun(b, "paused", endsOn7)
		h.verb(pod.Container, "pause")
		if state := b.Status(pod.Container).GetState(); state != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("a paused container is %v", state)
		}
		h.verb(pod.Container, "unpause")
		if got := b.ExecOut(pod.Container, "echo here"); got != "here" {
			t.Errorf("exec: %q", got)
		}
		h.verb(pod.Container, "pause")
		stop(b, pod.Container, 1)
		h.expect(pod, 7, "Error")
		pod = runUntilBegun(b, "paused-removed", endsOn7)
		h.verb(pod.Container, "pause")
		h.verb(pod.Sandbox, "pause")
		b.RemovePod(pod.Sandbox)
	})
}

func stop(b *harness.Berth, container string, timeout int64) {
	b.T.Helper()
	if _, err := b.Runtime.StopContainer(b.Ctx(), &runtimeapi.StopContainerRequest{ContainerId: container, Timeout: timeout}); err != nil {
		b.T.Errorf("StopContainer: %v", err)
	}
}
