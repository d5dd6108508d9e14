package endings

import (
	"os/exec"
	"testing"
)

func TestWitness(t *testing.T) {
	var w Witness
	if w.Code() != nil {
		t.Error("a witness of nothing has a code")
	}
	cmd := exec.Command("sh", "-c", "read line; exit 75")
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Watch(cmd.Process.Pid, func() bool { return false })
	w.Watch(cmd.Process.Pid, func() bool { return true })
	if w.Code() != nil {
		t.Error("a process that runs has a code")
	}
	if err := input.Close(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()                                    // code 75
	if code := w.Code(); code != nil && *code != 75 { // nil before Linux 6.15
		t.Errorf("code %d, want 75", *code)
	}
	w.Close()
	if w.Code() != nil {
		t.Error("a closed witness has a code")
	}
}
