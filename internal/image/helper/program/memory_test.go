package program

import (
	"os"
	"os/exec"
	"testing"
)

// TestInMemory: the copy can be executed and not be changed, users share it, and the last one frees it.
func TestInMemory(t *testing.T) {
	content, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	p := newInMemory(content, func() {}, Command{"/nothing"})
	unhold := p.Hold()
	if p.file != nil {
		t.Error("it is copied before it is used")
	}
	path, args, release, err := p.Use()
	if err != nil || len(args) != 1 || args[0] != Name {
		t.Fatalf("%q, %v", args, err)
	}
	if f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0); err == nil {
		f.Close()
		t.Error("it can be changed")
	}
	if out, err := exec.CommandContext(t.Context(), path).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	release()
	release() // counts once
	second, _, release, err := p.Use()
	if err != nil || second != path {
		t.Errorf("%s and %s, %v", path, second, err)
	}
	unhold()
	if p.file == nil {
		t.Error("it is freed while it is used")
	}
	release()
	if p.file != nil {
		t.Error("it is not freed")
	}
}
