//go:build integration

package server_test

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	events "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berthrun/berth/internal/supervisor/server/shim/sink"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// TestShimEventsAreTaken: a shim can report events while no supervisor and no keeper runs, and after the process that
// takes them was killed. That process ends with the last shim.
func TestShimEventsAreTaken(t *testing.T) {
	h := newHost(t).overShim(shimProgram(t)).keep()
	h.run("box", "sleep 1000", inPod("pod"))
	first := h.sinkPid()
	h.loseAll()
	if err := h.report(); err != nil {
		t.Errorf("an event while keeper and supervisor are dead: %v", err)
	}
	h.beginAgain()
	if err := h.report(); err != nil || h.sinkPid() != first {
		t.Errorf("an event after that: %v, process %d, was %d", err, h.sinkPid(), first)
	}
	killWhole(t, first)
	h.eventually("another process that takes events", func() bool { return h.sinkPid() > 0 && h.report() == nil })
	h.crash()
	if _, _, _, err := h.exec("box", "true"); err != nil {
		t.Error(err)
	}
	if err := h.client.Remove(h.ctx(), "box"); err != nil {
		t.Error(err)
	}
	if pid := h.sinkPid(); pid != 0 {
		t.Errorf("process %d still takes events without a shim", pid)
	}
}

// sinkPid returns the process that takes the events of shims, 0 for none.
func (h *host) sinkPid() int {
	pid, err := sysfd.LockHolder(filepath.Join(h.state, "shims", sink.LockName))
	if err != nil {
		h.t.Error(err)
	}
	return pid
}

// report reports an event, as a shim does.
func (h *host) report() error {
	conn, err := net.Dial("unix", filepath.Join(h.state, "shims", sink.SocketName))
	if err != nil {
		return err
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	ctx, stop := context.WithTimeout(h.t.Context(), 5*time.Second)
	defer stop()
	request := &events.ForwardRequest{Envelope: &types.Envelope{Topic: "/tasks/exit", Namespace: "berth", Timestamp: timestamppb.Now()}}
	_, err = events.NewTTRPCEventsClient(client).Forward(ctx, request)
	return err
}
