package docker

import (
	"log/slog"
	"os/exec"
	"testing"
)

// TestEndOf: only a process that is known to have ended has ended.
func TestEndOf(t *testing.T) {
	e := &Engine{log: slog.New(slog.DiscardHandler)}
	if ended := e.endOf(t.Context(), 0); ended != nil {
		t.Error("a process that is not known counts as watched")
	}
	command := exec.Command("cat")
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	ended := e.endOf(t.Context(), command.Process.Pid)
	select {
	case <-ended:
		t.Error("a process that runs counts as ended")
	default:
	}
	if err := input.Close(); err != nil {
		t.Fatal(err)
	}
	<-ended
	if err := command.Wait(); err != nil {
		t.Fatal(err)
	}
	<-e.endOf(t.Context(), command.Process.Pid)
}
