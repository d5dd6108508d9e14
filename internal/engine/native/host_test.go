package native

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/engine/native/handler"
)

// Status and `berth info` do not wait for a program that hangs.
func TestInfoDoesNotWaitForPrograms(t *testing.T) {
	dir := t.TempDir()
	path, fifo := filepath.Join(dir, "program"), filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\nread line < "+fifo+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	e := &Engine{}
	rules := &Rules{Handlers: handler.Table{Handlers: map[string]handler.Handler{"x": {Name: "x", Kind: handler.OCI, Path: path}}}}
	e.inForce.Store(rules)
	for range 2 {
		if info := e.handlerInfo(); len(info) != 2 || !strings.Contains(info[1].Fault, `handler "x": the features of `+path+" are not known yet") {
			t.Errorf("info while the program hangs: %+v", info)
		}
		if warnings := e.handlerWarnings(rules); len(warnings) != 1 || !strings.Contains(warnings[0], "not known yet") {
			t.Errorf("warnings while the program hangs: %q", warnings)
		}
	}
	// It ends.
	f, err := os.OpenFile(fifo, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}
