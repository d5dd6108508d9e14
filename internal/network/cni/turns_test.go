package cni

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
)

// TestProcessesOfOneProgram: a program that hangs has its processes and no more; those that wait fail at their deadline,
// with the one that they wait for, and other programs and other verbs are not held up.
func TestProcessesOfOneProgram(t *testing.T) {
	dir := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\ntouch %s/$CNI_COMMAND-$CNI_CONTAINERID\n", dir) +
		"case $CNI_COMMAND-$CNI_CONTAINERID in ADD-hung*) exec sleep 1000;; esac\necho '{}'\n"
	hangs, fast := filepath.Join(dir, "hangs"), filepath.Join(dir, "fast")
	for _, path := range []string{hangs, fast} {
		if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	e := newExecutor(&Config{ProgramsOnly: true, MaxProcesses: 2})
	call := func(ctx context.Context, path, verb, id string) error {
		_, err := e.ExecPlugin(ctx, path, nil, []string{"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + id})
		return err
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 2)
	for _, id := range []string{"hung1", "hung2"} {
		go func() { ended <- call(ctx, hangs, "ADD", id) }()
	}
	for _, id := range []string{"hung1", "hung2"} {
		for deadline := time.Now().Add(require.Patience(20 * time.Second)); ; time.Sleep(5 * time.Millisecond) {
			if _, err := os.Stat(filepath.Join(dir, "ADD-"+id)); err == nil {
				break
			} else if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
	for _, verb := range []string{"ADD", "DEL"} {
		waits, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err := call(waits, hangs, verb, "third")
		stop()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", verb, err)
			continue
		}
		for _, want := range []string{hangs, "network.max_plugin_processes", "all 2", "ADD of sandbox hung"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
		if _, err := os.Stat(filepath.Join(dir, verb+"-third")); err == nil {
			t.Errorf("%s: a third process was started", verb)
		}
	}
	for _, c := range [][3]string{{fast, "ADD", "other"}, {hangs, "STATUS", ""}, {hangs, "VERSION", ""}} {
		if err := call(t.Context(), c[0], c[1], c[2]); err != nil {
			t.Errorf("%v: %v", c, err)
		}
	}
	cancel()
	for range 2 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if err := call(t.Context(), hangs, "ADD", "third"); err != nil {
		t.Errorf("after the hung processes ended: %v", err)
	}
}

// TestCallAfterItsDeadline: a call whose deadline has passed does not report that all processes are busy while none is.
func TestCallAfterItsDeadline(t *testing.T) {
	e := newExecutor(&Config{ProgramsOnly: true, MaxProcesses: 1})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 64 { // select chooses at random
		_, err := e.ExecPlugin(ended, "/nonesuch", nil, []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=pod"})
		if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "busy") {
			t.Fatal(err)
		}
	}
	// A collection is for no sandbox.
	end, err := e.turns.take(t.Context(), "/nonesuch", []string{"CNI_COMMAND=GC"})
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	if _, err := e.turns.take(ended, "/nonesuch", []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=pod"}); !strings.HasSuffix(err.Error(), "with GC: context canceled") {
		t.Error(err)
	}
}
