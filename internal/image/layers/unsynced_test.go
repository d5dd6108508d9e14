package layers

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
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
