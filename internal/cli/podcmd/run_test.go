package podcmd

import (
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"
)

// TestClosedTerminalStopsPods: SIGHUP stops the pods, however often it comes, and with it the SIGTERM of a session that ends.
// The next signal kills them.
func TestClosedTerminalStopsPods(t *testing.T) {
	// Neither ignored, nor the end of the test.
	own := make(chan os.Signal, 8)
	signal.Notify(own, syscall.SIGHUP, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(own)
	ctx, kill, stop := interrupts(t.Context())
	defer stop()
	send := func(sig syscall.Signal) {
		t.Helper()
		if err := syscall.Kill(os.Getpid(), sig); err != nil {
			t.Fatal(err)
		}
		<-own
	}
	wait := func(what string, ended <-chan struct{}) {
		t.Helper()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s does not come", what)
		}
	}
	send(syscall.SIGHUP)
	wait("the stop", ctx.Done())
	send(syscall.SIGHUP)
	send(syscall.SIGTERM)
	select {
	case <-kill:
		t.Error("SIGHUP with SIGTERM kills the pods")
	case <-time.After(50 * time.Millisecond):
	}
	send(syscall.SIGINT)
	wait("the kill", kill)
}
