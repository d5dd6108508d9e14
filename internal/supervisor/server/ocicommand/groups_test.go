package ocicommand

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A program whose help fails is asked again after a minute, not at each exec.
func TestFailedHelpIsRemembered(t *testing.T) {
	r := programOf(t, `echo asked >> $dir/asked; [ -e $dir/well ] || exit 1; echo "--cgroup"`)
	dir := filepath.Dir(r.program.Path)
	asked := func() int {
		data, _ := os.ReadFile(filepath.Join(dir, "asked"))
		return strings.Count(string(data), "asked")
	}
	for range 3 {
		if got := r.groups(t.Context()); got != (groups{}) {
			t.Errorf("a program without help: %+v", got)
		}
	}
	if n := asked(); n != 1 {
		t.Errorf("it was asked %d times in a minute", n)
	}
	if err := os.WriteFile(filepath.Join(dir, "well"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a := &r.all.abilities
	for file, last := range a.known {
		last.retry = last.retry.Add(-helpRetry)
		a.known[file] = last
	}
	for range 2 {
		if got := r.groups(t.Context()); !got.any || asked() != 2 {
			t.Errorf("after a minute: %+v, asked %d times", got, asked())
		}
	}
}

// The help of a program may be endless.
func TestLongHelp(t *testing.T) {
	r := programOf(t, `head -c 10000000 /dev/zero; echo "--cgroup"`)
	help, err := execHelp(t.Context(), r.program.Path)
	if err != nil || len(help) > maxOutput {
		t.Errorf("%d bytes were kept: %v", len(help), err)
	}
	if got := r.groups(t.Context()); !got.any {
		t.Errorf("it is not read to its end: %+v", got)
	}
}

// TestHungHelp: nothing is left of a program that hangs.
func TestHungHelp(t *testing.T) {
	sleeper := fmt.Sprint("sleep ", 2_000_000+os.Getpid())
	r := programOf(t, "(setsid "+sleeper+" &); echo begun > $dir/begun; "+sleeper)
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(filepath.Join(filepath.Dir(r.program.Path), "begun")); err == nil {
				stop()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if _, err := execHelp(ctx, r.program.Path); err == nil {
		t.Error("a help that was cancelled has no error")
	}
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, each := range lines {
		data, _ := os.ReadFile(each)
		if strings.ReplaceAll(strings.TrimRight(string(data), "\x00"), "\x00", " ") == sleeper {
			t.Errorf("%s is left", each)
		}
	}
}

// An exec that is cancelled says nothing of its program.
func TestHelpOfACancelledExec(t *testing.T) {
	r := programOf(t, `echo "--cgroup <controller>"`)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if got := r.groups(ctx); got != (groups{}) {
		t.Errorf("a cancelled one: %+v", got)
	}
	if got := r.groups(t.Context()); !got.any || !got.controllers {
		t.Errorf("the next one: %+v", got)
	}
}
