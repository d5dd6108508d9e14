// Package interrupt gives commands time to undo their changes when a signal ends them.
package interrupt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"syscall"

	"github.com/berthrun/berth/internal/cli/exitcode"
)

// Run calls do with a context that ends on Ctrl-C, on SIGTERM, and when the terminal is
// closed. do then has time to undo its changes: only a second Ctrl-C or SIGTERM ends the process at
// once, which say announces. SIGPIPE does not end it: on Ctrl-C the reader of a pipe ends before
// anything is undone. The exit code is that of a process that the signal has ended.
func Run(ctx context.Context, say func(string), do func(context.Context) error) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGPIPE)
	if !signal.Ignored(syscall.SIGHUP) { // as nohup has it
		signal.Notify(signals, syscall.SIGHUP)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watched := make(chan syscall.Signal)
	go func() { watched <- watch(signals, cancel, say) }()
	err := do(ctx)
	signal.Stop(signals)
	close(signals)
	sig := <-watched
	unread := (*fs.PathError)(nil)
	switch {
	case err == nil:
		return nil
	case sig != 0:
		return &exitcode.Error{Code: 128 + int(sig), Err: err}
	case errors.As(err, &unread) && unread.Path == os.Stdout.Name() && errors.Is(err, syscall.EPIPE):
		return exitcode.Of(128 + int(syscall.SIGPIPE))
	}
	return err
}

// watch ends a context on the first signal, which it returns once the channel is closed. A closed
// terminal may cause two signals.
func watch(signals <-chan os.Signal, end context.CancelCauseFunc, say func(string)) (first syscall.Signal) {
	asked := false
	for s := range signals {
		sig, _ := s.(syscall.Signal)
		if sig == syscall.SIGPIPE {
			continue
		}
		if asked && sig != syscall.SIGHUP {
			os.Exit(128 + int(sig))
		}
		asked = asked || sig != syscall.SIGHUP
		if first != 0 {
			continue
		}
		first = sig
		end(fmt.Errorf("%s signal received", sig))
		if sig == syscall.SIGINT {
			say("interrupted; press Ctrl-C again to exit at once without cleaning up")
		}
	}
	return first
}
