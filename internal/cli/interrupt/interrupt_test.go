package interrupt_test

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/cli/exitcode"
	"github.com/berthrun/berth/internal/cli/interrupt"
)

// TestClosedTerminal: a command has time to undo its changes when the connection to the machine ends, also when the signal
// comes twice.
func TestClosedTerminal(t *testing.T) {
	hangup := make(chan os.Signal, 1) // the caller may ignore it, as nohup does
	signal.Notify(hangup, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hangup) })
	undone := false
	err := interrupt.Run(t.Context(), func(string) {}, func(ctx context.Context) error {
		for range 2 {
			if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			<-hangup
		}
		<-ctx.Done()
		undone = true
		return ctx.Err()
	})
	if code := (*exitcode.Error)(nil); !undone || !errors.As(err, &code) || code.Code != 129 {
		t.Errorf("undone: %t, %v", undone, err)
	}
}
