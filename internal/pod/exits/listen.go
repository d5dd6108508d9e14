package exits

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
)

// exitPause is how long to wait before the engine is asked for its exits again.
const exitPause = time.Second

// Source reports exits; see engine.Engine.Exits.
type Source interface {
	Exits(ctx context.Context) (<-chan engine.Exit, error)
}

// listener records the exits that an engine reports.
type listener struct {
	source   Source
	recorder *Recorder
	// recheck is called in the background after the engine was away.
	recheck    func(context.Context)
	background *sync.WaitGroup
}

// Listen records exits in the background until ctx ends. When the source is lost, it
// listens again and calls recheck, since exits may have been missed meanwhile. An error
// means that the source cannot be listened to at all.
func Listen(ctx context.Context, source Source, recorder *Recorder, recheck func(context.Context), background *sync.WaitGroup) error {
	exits, err := source.Exits(ctx)
	if err != nil {
		return fmt.Errorf("cannot listen to the engine's exits: %w", err)
	}
	l := &listener{source: source, recorder: recorder, recheck: recheck, background: background}
	background.Go(func() { l.listen(ctx, exits) })
	return nil
}

// listen records exits until ctx ends.
func (l *listener) listen(ctx context.Context, exits <-chan engine.Exit) {
	for exits != nil {
		select {
		case <-ctx.Done():
			return
		case exit, open := <-exits:
			if open {
				errs.Protect("record of the exit of "+exit.ContainerID, func() { l.recorder.Record(&exit) })
				continue
			}
			// The engine lost its own connection; it reports what was missed.
			exits = l.listenAgain(ctx)
			l.background.Go(func() { errs.Protect("look at what the engine lost", func() { l.recheck(ctx) }) })
		}
	}
}

func (l *listener) listenAgain(ctx context.Context) <-chan engine.Exit {
	away := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(exitPause):
		}
		exits, err := l.source.Exits(ctx)
		switch {
		case err == nil && away:
			l.recorder.log.Info("listening to the engine's exits again")
			fallthrough
		case err == nil:
			return exits
		case !away && ctx.Err() == nil:
			away = true
			l.recorder.log.Error("cannot listen to the engine's exits; retrying each second, until the engine is back", "error", err)
		}
	}
}
