package logs

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// read reads one stream to its end. progressed is true when it had new output. A nil error
// means that the engine has delivered all that it had.
func (f *follower) read(ctx context.Context, follow bool) (progressed bool, err error) {
	return f.readFrom(ctx, slack, follow)
}

// readFrom is read of messages that are not older than the last line, but for some time.
func (f *follower) readFrom(ctx context.Context, before time.Duration, follow bool) (progressed bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	since, sieve := f.outlet.begin(before)
	stream, err := f.engine.ContainerLogs(ctx, f.container.EngineID, f.options(since, tails()[f.tail], follow))
	if err != nil {
		return false, err
	}
	defer stream.Close()
	var count atomic.Int64
	if follow {
		defer f.closeWhenDrained(cancel, &count)()
	}
	err = f.copy(ctx, f.decoder(stream), sieve, &count)
	if sieve.missed {
		f.log.Warn("the engine no longer has the output that follows the end of the log; some may be missing")
	}
	f.chooseTail(err, sieve.passed)
	return sieve.passed, err
}

// copy moves messages from a stream to the log.
func (f *follower) copy(ctx context.Context, from decoder, sieve *sieve, count *atomic.Int64) error {
	for {
		m, err := from.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		count.Add(1)
		if f.silent {
			f.silent = false
			f.log.Info("the output of this container can be read again")
		}
		if m.raw = sieve.unwritten(m); len(m.raw) == 0 {
			continue
		}
		if err := f.outlet.put(ctx, m); err != nil {
			return err
		}
	}
}

// chooseTail decides how much the next stream reads, after one that ended with err.
func (f *follower) chooseTail(err error, passed bool) {
	var reported *engineError
	switch {
	case passed:
		f.tail = 0
	case errors.As(err, &reported) && f.tail < len(tails())-1:
		f.tail++
	}
}

// closeWhenDrained closes a stream that stays silent after the container has ended.
func (f *follower) closeWhenDrained(cancel context.CancelFunc, count *atomic.Int64) (stop func()) {
	over := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		select {
		case <-over:
			return
		case <-f.draining:
		}
		for before := count.Load(); ; before = count.Load() {
			select {
			case <-over:
				// The next stream has to end as well.
				signal(f.draining)
				return
			case <-time.After(drainPatience):
			}
			if count.Load() == before {
				cancel()
				return
			}
		}
	})
	return func() {
		close(over)
		ended.Wait()
	}
}
