package berth

import (
	"context"
	"fmt"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/criclient/podlog"
)

// endPoll is the time between two checks whether a starting node has ended.
const endPoll = 250 * time.Millisecond

// ready waits until the log of a node's run says that systemd is up.
func (e *Provider) ready(ctx context.Context, r *record, wait time.Duration) error {
	if !r.isNode() {
		return nil
	}
	deadline, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	deadline, up := context.WithCancel(deadline)
	defer up()
	boot := provider.NewBootLog(up)
	ended := make(chan struct{})
	go e.watchEnd(deadline, r, ended)
	err := podlog.Copy(deadline, e.logFile(r, r.Run), podlog.Options{Tail: -1, Ended: ended}, boot, boot)
	switch {
	case boot.Up():
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case deadline.Err() == nil && err != nil:
		return fmt.Errorf("cannot read the log of %s: %w", r.name(), err)
	}
	state := "nothing is known of its state"
	if f, err := e.find(ctx, r); err == nil {
		if n, err := e.node(ctx, r, f); err == nil {
			state = "it is " + n.State
			if !n.Running {
				state = fmt.Sprintf("it is %s, status %d", n.State, n.ExitCode)
			}
		}
	}
	return boot.NotUp(wait, deadline.Err() != nil, state)
}

// watchEnd closes ended when a node no longer runs, or its state cannot be read.
func (e *Provider) watchEnd(ctx context.Context, r *record, ended chan<- struct{}) {
	defer close(ended)
	for {
		f, err := e.find(ctx, r)
		if err != nil || f.container.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
			return
		}
		select {
		case <-time.After(endPoll):
		case <-ctx.Done():
			return
		}
	}
}
