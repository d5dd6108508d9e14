package podrun

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// checkPeriod is the time between two checks whether the runtime answers.
const checkPeriod = time.Second

// create makes a call that creates something, or that must not be left half done. The call does not
// end with ctx, since the runtime would continue with what ctx has cut off, but with Kill. It waits for
// a runtime that does not answer until ctx ends, and at most for Patience.
func (k *podRun) create(ctx context.Context, call func(context.Context) error) error {
	making, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	go func() {
		select {
		case <-k.Kill:
			cancel()
		case <-making.Done():
		}
	}()
	return k.retry(making, ctx.Done(), k.Timings.Patience, call)
}

// retryUnavailable makes a call that looks at something or ends it. It waits for a runtime that does
// not answer until ctx ends or Kill is closed, since the containers run on meanwhile. The limit of an
// impatient run is Patience.
func (k *podRun) retryUnavailable(ctx context.Context, call func(context.Context) error) error {
	var patience time.Duration
	if k.impatient {
		patience = k.Timings.Patience
	}
	return k.retry(ctx, k.Kill, patience, call)
}

// retry repeats a call that a restart of the runtime has cut off, or that is not possible now: for as
// long as the socket does not answer, and a few times more. Every call can be repeated: CRI calls
// are idempotent. It says once per cause why it repeats. When stop is closed it does not try again with
// a runtime that answers, and watchRuntime ends it if the runtime does not. patience bounds the time
// without an answer; 0 for no limit.
func (k *podRun) retry(ctx context.Context, stop <-chan struct{}, patience time.Duration, call func(context.Context) error) error {
	const more = 3
	waiting, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	go k.watchRuntime(waiting, stop, patience, abort)
	for left := more; ; {
		err := call(waiting)
		if err == nil {
			k.clearCauses()
			return nil
		}
		if ctx.Err() == nil && waiting.Err() != nil {
			return context.Cause(waiting)
		}
		if !errors.Is(err, errs.Unavailable) || ctx.Err() != nil {
			return err
		}
		// If the runtime does not answer, watchRuntime ends the call: it also records that for later calls.
		var stopped <-chan struct{}
		if k.Conn.Reachable(ctx) {
			if left--; left < 0 {
				// sayRetry has said the cause once: this says what is new.
				return fmt.Errorf("gave up after %d retries: %w", more, err)
			}
			k.sayRetry(err)
			stopped = stop
		} // else watchRuntime says it
		select {
		case <-stopped:
			return err
		case <-waiting.Done():
			return context.Cause(waiting)
		case <-time.After(k.Timings.Retry):
		}
	}
}

// watchRuntime aborts a call, with an error of kind Unavailable as its cause, when the runtime does
// not answer for patience, or does not answer once stop is closed. It returns when ctx ends.
func (k *podRun) watchRuntime(ctx context.Context, stop <-chan struct{}, patience time.Duration, abort context.CancelCauseFunc) {
	var lost time.Time // when the runtime was first found not to answer
	stopped, period := false, min(checkPeriod, k.Timings.Retry)
	first := period
	if patience > 0 && k.gone.Load() {
		first = 0 // an earlier call has waited long enough
	}
	for ; ; first = period {
		select {
		case <-ctx.Done():
			return
		case <-stop:
			stopped, stop = true, nil
		case <-time.After(first):
		}
		reachable := k.Conn.Reachable(ctx)
		if ctx.Err() != nil {
			return // the check may have failed because of it
		}
		if reachable {
			lost = time.Time{}
			k.gone.Store(false)
			continue
		}
		if lost.IsZero() {
			lost = time.Now()
		}
		waited := time.Since(lost)
		if stopped || patience > 0 && (k.gone.Load() || waited >= patience) {
			k.gone.Store(true)
			abort(k.goneError(waited))
			return
		}
		k.sayRetry(k.awayError(patience))
	}
}

// awayError says that the runtime does not answer, and how long a call waits for it.
func (k *podRun) awayError(patience time.Duration) error {
	if patience > 0 {
		return fmt.Errorf("nobody answers on %s; this command gives up after %s: %w", k.Conn.Endpoint, patience, errs.Unavailable)
	}
	return fmt.Errorf("nobody answers on %s; a second Ctrl-C gives up: %w", k.Conn.Endpoint, errs.Unavailable)
}

func (k *podRun) goneError(waited time.Duration) error {
	return fmt.Errorf("nobody answers on %s (waited %s): the daemon has ended, and does not come back: look at its log "+
		"(under systemd: `journalctl -u berth`): %w", k.Conn.Endpoint, waited.Round(time.Second), errs.Unavailable)
}

// sayRetry says why a call is repeated, once for each cause until a call succeeds. Each try has a
// sandbox of its own: ids do not make another cause.
func (k *podRun) sayRetry(cause error) {
	text := regexp.MustCompile(`[0-9a-f]{64}`).ReplaceAllString(cause.Error(), "")
	k.mu.Lock()
	said := k.causes[text]
	k.causes[text] = true
	k.mu.Unlock()
	if !said {
		k.say("retrying: %v", cause)
	}
}

func (k *podRun) clearCauses() {
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.causes)
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
