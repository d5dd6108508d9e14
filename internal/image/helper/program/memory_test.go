package program

import (
	"os"
	"os/exec"
	"testing"
	"testing/synctest"
	"time"
)

// TestInMemory: the copy can be executed and not be changed, users share it, and it is freed some time after the last use.
func TestInMemory(t *testing.T) {
	content, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		p := newInMemory(content, Command{"/nothing"})
		copied := func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.file != nil
		}
		path, args, release, err := p.Use()
		if err != nil || len(args) != 1 || args[0] != Name {
			t.Fatalf("%q, %v", args, err)
		}
		if f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0); err == nil {
			f.Close()
			t.Error("it can be changed")
		}
		second, _, releaseSecond, err := p.Use()
		if err != nil || second != path {
			t.Errorf("%s and %s, %v", path, second, err)
		}
		release()
		release() // counts once
		time.Sleep(time.Hour)
		if !copied() {
			t.Error("it is freed while it is used")
		}
		releaseSecond()
		time.Sleep(lingering / 2)
		if _, _, release, err = p.Use(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if !copied() {
			t.Error("it is freed while it is used again")
		}
		release()
		time.Sleep(2 * lingering)
		if copied() {
			t.Error("it is not freed")
		}
	})
	p := newInMemory(content, Command{"/nothing"})
	path, _, release, err := p.Use()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if out, err := exec.CommandContext(t.Context(), path).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
