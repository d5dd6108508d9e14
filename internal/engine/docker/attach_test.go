package docker

import (
	"errors"
	"log/slog"
	"os/exec"
	"testing"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
)

// TestClientsOfAContainerAreBounded: a container with all the clients that it may have refuses one more, before the Docker
// Engine is called.
func TestClientsOfAContainerAreBounded(t *testing.T) {
	e := &Engine{}
	var leave func()
	for range attachMax {
		var err error
		if leave, err = e.attached.join("a"); err != nil {
			t.Fatal(err)
		}
		defer leave()
	}
	if err := e.Attach(t.Context(), &engine.AttachSpec{ContainerID: "a"}); !errors.Is(err, errs.Exhausted) {
		t.Errorf("one client too many: %v", err)
	}
	leaveB, err := e.attached.join("b")
	if err != nil {
		t.Fatalf("another container: %v", err)
	}
	leaveB()
	if _, there := e.attached.clients["b"]; there {
		t.Error("a container without clients is kept")
	}
}

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
