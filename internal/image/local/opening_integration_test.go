//go:build integration

package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/helper/program"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// heldChecks is a helper whose checks of databases wait for a line each in a FIFO.
func heldChecks(t *testing.T) (command program.Command, release func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "turns")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	fifo, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fifo.Close() })
	script := fmt.Sprintf(`if [ "$1" = check-database ]; then read -r turn < %s; fi; exec %s "$@"`, path, helper[0])
	return program.Command{"/bin/sh", "-c", script, "sh"}, func() {
		if _, err := fifo.WriteString("go\ngo\n"); err != nil {
			t.Error(err)
		}
	}
}

// TestWhatNeedsNoDatabaseDoesNotWaitForItsCheck: a daemon answers lists of pods while the databases are read. Requests
// for images wait, as long as their callers do.
func TestWhatNeedsNoDatabaseDoesNotWaitForItsCheck(t *testing.T) {
	ctx := t.Context()
	s, img := imported(t)
	if _, err := s.Prepare(ctx, image.RootfsSpec{Key: "c", ImageID: img.ID}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	note := filepath.Join(s.cfg.Root, "closed")
	if err := os.Remove(note); err != nil { // as after a kill
		t.Fatal(err)
	}
	cfg := s.cfg
	var release func()
	cfg.UnpackHelper, release = heldChecks(t)

	held := start(t, cfg)
	if keys, err := held.Keys(ctx); err != nil || !slices.Equal(keys, []string{"c"}) {
		t.Errorf("keys of root filesystems: %v, %v", keys, err)
	}
	if pools := held.Pools(); len(pools) != 0 {
		t.Errorf("pools of a store that is not open: %v", pools)
	}
	impatient, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := held.Get(impatient, img.ID); !errors.Is(err, context.Canceled) {
		t.Errorf("an image, for a caller that does not wait: %v", err)
	}
	if err := held.Release(impatient, "c"); !errors.Is(err, context.Canceled) {
		t.Errorf("a release, for a caller that does not wait: %v", err)
	}
	// The store can be closed although its check does not end, and is not intact then.
	held.background.CloseTimeout = time.Millisecond
	if err := held.Close(); err != nil {
		t.Errorf("close during the check: %v", err)
	}
	if _, err := os.Stat(note); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the store says that it is intact, and it was not checked: %v", err)
	}
	if _, err := held.Get(ctx, img.ID); !errors.Is(err, errs.Unavailable) {
		t.Errorf("an image of a closed store: %v", err)
	}

	held = start(t, cfg)
	held.SetPullRules(PullRules{MaxLayer: 1})
	got := make(chan error, 1)
	go func() {
		_, err := held.Get(ctx, img.ID)
		got <- err
	}()
	release()
	if err := <-got; err != nil {
		t.Errorf("an image, for a caller that waits: %v", err)
	}
	large := archiveOf(t, imagetest.Spec{Name: "large:1", Layers: []imagetest.Layer{{{Path: "f", Content: []byte("more than a byte")}}}})
	if _, err := held.Import(ctx, large, "", false, nil); err == nil {
		t.Error("the rules that were set before the store was open do not hold")
	}
	if err := errors.Join(held.Release(ctx, "c"), held.Close()); err != nil {
		t.Error(err)
	}
}

// start is Start. The store is closed with the test.
func start(t *testing.T, cfg Config) *Images {
	t.Helper()
	s, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestAStoreThatCannotBeOpened: no request takes the failure for its own answer.
func TestAStoreThatCannotBeOpened(t *testing.T) {
	ctx := t.Context()
	cfg := testConfig(t)
	turn := make(chan struct{})
	cfg.After = turn
	s := start(t, cfg)
	// What is damaged later than that is not set aside.
	content := filepath.Join(cfg.Root, "content")
	if err := os.RemoveAll(content); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(content, nil, 0o600); err != nil { // not a directory
		t.Fatal(err)
	}
	close(turn)
	if err := s.Await(ctx); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("the reason: %v", err)
	}
	if err := s.Release(ctx, "c"); !errors.Is(err, errs.Unavailable) || errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a release: %v", err)
	}
	if err := s.Remove(ctx, "app:1"); !errors.Is(err, errs.Unavailable) {
		t.Errorf("a removal: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	cfg.After = nil
	if s, err := Open(ctx, cfg); err != nil {
		t.Errorf("the next start, which sets the file aside: %v", err)
	} else if err := s.Close(); err != nil {
		t.Error(err)
	}
}
