package podrun

import (
	"context"
	"errors"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/criclient/stream"
	"github.com/berthrun/berth/internal/errs"
)

// attachGrace is how long an attach may continue after its container has ended.
const attachGrace = 2 * time.Second

// show prints the attempt's log, or joins the terminal to it, until it has ended. It outlives ctx:
// a container that gets SIGTERM may still write.
func (k *podRun) show(ctx context.Context, a *attempt, logPath string) {
	if k.Out == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	k.followers.Go(func() {
		defer cancel()
		if k.Attach == a.spec.Name {
			err := k.attach(ctx, a)
			if !errors.Is(err, errs.State) {
				if err != nil {
					k.say("%s: %v", a.spec.Name, err)
				}
				return
			}
			// It ended before the attach: its log has all of its output.
		}
		k.out.Follow(ctx, a.spec.Name, a.ended, logPath)
	})
}

func (k *podRun) attach(ctx context.Context, a *attempt) error {
	resp, err := k.Conn.Runtime.Attach(ctx, &runtimeapi.AttachRequest{
		ContainerId: a.id, Tty: a.spec.TTY, Stdin: a.spec.Stdin, Stdout: true, Stderr: !a.spec.TTY,
	})
	if err != nil {
		return err
	}
	streams := stream.Streams{Out: k.Out, TTY: a.spec.TTY}
	if a.spec.Stdin {
		streams.In = k.In
	}
	if !a.spec.TTY {
		streams.Err = k.Err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-a.ended:
			if sleep(ctx, attachGrace) == nil {
				cancel()
			}
		case <-ctx.Done():
		}
	}()
	_, err = stream.Run(ctx, resp.Url, streams)
	if ctx.Err() != nil {
		return nil
	}
	return err
}
