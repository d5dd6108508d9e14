package layers

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/image/background"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// waited returns how long wait takes.
func (s *syncs) waited(ctx context.Context) time.Duration {
	begun := time.Now()
	s.wait(ctx)
	return time.Since(begun)
}

// TestOneSyncForAllLists: images that are pulled at once are synced together, some time after the last one is unpacked.
func TestOneSyncForAllLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s syncs
		s.begin()
		s.begin()
		if !s.end("a") {
			t.Error("nothing syncs the first list")
		}
		go func() {
			time.Sleep(2 * time.Second)
			if s.end("b") {
				t.Error("two syncs run for the lists")
			}
		}()
		if took := s.waited(t.Context()); took != 2*time.Second+syncDelay {
			t.Errorf("the sync begins after %v, want %v after the last layer", took, syncDelay)
		}
		if lists := s.take(); !slices.Equal(lists, []string{"a", "b"}) {
			t.Errorf("the sync is for %v, want both lists", lists)
		}
		if took := s.waited(t.Context()); took != 0 {
			t.Errorf("with nothing to sync it waits for %v", took)
		}
		if lists := s.take(); lists != nil {
			t.Errorf("%v are synced twice", lists)
		}
		s.begin()
		if !s.end("c") {
			t.Error("nothing syncs a list that comes later")
		}
	})
}

// TestASyncDoesNotWaitForSlowPulls: it begins while other layers are being unpacked.
func TestASyncDoesNotWaitForSlowPulls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s syncs
		s.begin() // a download that takes hours
		s.begin()
		s.end("a")
		if took := s.waited(t.Context()); took != maxSyncDelay {
			t.Errorf("the sync begins after %v, want %v", took, maxSyncDelay)
		}
		if lists := s.take(); !slices.Equal(lists, []string{"a"}) {
			t.Errorf("the sync is for %v, want the list of what is unpacked", lists)
		}
	})
}

// TestTheCloseOfAStoreDoesNotWait: the sync begins at once then.
func TestTheCloseOfAStoreDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s syncs
		s.begin()
		s.end("a")
		ctx, cancel := context.WithTimeout(t.Context(), syncDelay/2)
		defer cancel()
		if took := s.waited(ctx); took != syncDelay/2 {
			t.Errorf("the sync begins after %v, want the end of the context", took)
		}
	})
}

// TestASyncThatFails: the kernel reports an error of the disk once, so a later sync says nothing of what was lost. No list of the
// boot is removed any more, also by the next process. After a reboot all are, once their layers are dropped.
func TestASyncThatFails(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(UnsyncedDir(root), 0o700); err != nil {
		t.Fatal(err)
	}
	db := database.New(database.Paths{Root: root}, os.RemoveAll, slog.New(slog.DiscardHandler))
	start := func() (*Unpacker, func()) {
		group := background.NewGroup()
		u := New(Config{DB: db, Background: group, Log: slog.New(slog.DiscardHandler)})
		if err := u.CheckUnsynced(t.Context()); err != nil {
			t.Fatal(err)
		}
		return u, group.Close
	}
	list := func(u *Unpacker) {
		t.Helper()
		done, err := u.listUnsynced(nil)
		if err != nil {
			t.Fatal(err)
		}
		done()
	}
	left := func() int {
		t.Helper()
		all, err := os.ReadDir(UnsyncedDir(root))
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	for _, fails := range []error{nil, unix.EIO, nil} {
		u, stop := start()
		u.syncFS = func(string) error { return fails }
		list(u)
		stop()
		if fails == nil {
			continue
		}
		if left() != 2 { // the list and the note
			t.Errorf("after a sync that failed %d files are left, want 2", left())
		}
		u.syncFS = func(string) error { return nil }
		later := filepath.Join(UnsyncedDir(root), "later")
		if err := errors.Join(os.WriteFile(later, []byte(`{"boot":"`+bootID(t)+`"}`), 0o600), u.dropLists(t.Context(), []string{later})); err != nil {
			t.Error(err)
		}
	}
	if left() != 4 { // three lists and the note
		t.Errorf("after a sync of the next process %d files are left, want 4", left())
	}
	all, err := filepath.Glob(filepath.Join(UnsyncedDir(root), "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, bytes.Replace(data, []byte(`"boot":"`), []byte(`"boot":"another `), 1), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	u, stop := start()
	list(u)
	stop()
	if left() != 0 {
		t.Errorf("after a reboot %d files are left", left())
	}
}

func bootID(t *testing.T) string {
	t.Helper()
	boot, err := sysproc.BootID()
	if err != nil {
		t.Fatal(err)
	}
	return boot
}
