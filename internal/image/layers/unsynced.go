package layers

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// unsynced lists snapshots whose files may not be on disk yet.
//
// Databases are synced with each change. Files of layers are not, because unpacking would wait
// for the disk. So the unpacker writes and syncs a list before it commits the first snapshot of
// an image, and removes the list after a sync of the file system in the background. A list of
// another boot means a loss of power before that sync: its snapshots are unpacked again from
// their blobs, which are synced before the image is recorded.
//
// The kernel reports once that it could not write a file: a sync that succeeds says nothing of files that an earlier one has
// lost. So after a sync that has failed no list of the same boot is removed, also by later processes.
type unsynced struct {
	Boot      string   `json:"boot"`
	Snapshots []string `json:"snapshots"`
	// Failed is set in the note of a sync that has failed, which is a list without snapshots.
	Failed bool `json:"failed,omitempty"`
}

// failedNote is the name of that note among the lists.
const failedNote = "failed"

// A sync begins when no layer has been unpacked for syncDelay: before that it would write files of layers that are not complete,
// and the pull, and the container that starts after it, would wait for the disk. It does not wait longer than maxSyncDelay.
const (
	syncDelay    = time.Second
	maxSyncDelay = 5 * time.Second
)

// syncs are the lists of layers that are unpacked. One sync is for all of them.
type syncs struct {
	mu sync.Mutex
	// unpacking is how many lists have layers that are being unpacked. ended is when it was decreased last.
	unpacking int
	ended     time.Time
	// lists are the files of the lists that wait for a sync. running is set while there is a goroutine for them.
	lists   []string
	running bool
}

// begin counts one more list with layers that are being unpacked.
func (s *syncs) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unpacking++
}

// end has a list wait for a sync. start is whether the caller must start the goroutine for it.
func (s *syncs) end(list string) (start bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unpacking--
	s.ended = time.Now()
	s.lists = append(s.lists, list)
	start = !s.running
	s.running = true
	return start
}

// wait returns when a sync may begin.
func (s *syncs) wait(ctx context.Context) {
	for begun := time.Now(); ; {
		s.mu.Lock()
		quiet, latest := s.ended.Add(syncDelay), begun.Add(maxSyncDelay)
		if s.unpacking > 0 {
			quiet = time.Now().Add(syncDelay)
		}
		s.mu.Unlock()
		if quiet.After(latest) {
			quiet = latest
		}
		left := time.Until(quiet)
		if left <= 0 {
			return
		}
		select {
		case <-time.After(left):
		case <-ctx.Done():
			return
		}
	}
}

// take returns the lists that wait for a sync. If there are none, the goroutine for them must end.
func (s *syncs) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lists := s.lists
	s.lists = nil
	s.running = len(lists) > 0
	return lists
}

// listUnsynced writes a list. done has it removed after a sync.
func (u *Unpacker) listUnsynced(chains []string) (done func(), err error) {
	boot, err := sysproc.BootID()
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(unsynced{Boot: boot, Snapshots: chains})
	if err != nil {
		return nil, err
	}
	path := filepath.Join(u.unsyncedDir, strings.ToLower(rand.Text()))
	u.syncs.begin()
	if err := sysfile.WriteSynced(path, data); err != nil {
		u.syncLater(path)
		return nil, fmt.Errorf("cannot mark snapshots as not yet on disk: %w", errs.OfDisk(err))
	}
	return func() { u.syncLater(path) }, nil
}

// syncLater has a list removed after a sync.
func (u *Unpacker) syncLater(list string) {
	if u.syncs.end(list) {
		u.background.GoUntilTimeout(u.syncAll)
	}
}

// syncAll syncs until no list is left. If the store closes first, lists may stay, and the next start syncs again.
func (u *Unpacker) syncAll(ctx context.Context) {
	for {
		if waiting, end, err := u.background.Begin(ctx); err == nil { // else the store is being closed
			u.syncs.wait(waiting)
			end()
		}
		lists := u.syncs.take()
		if len(lists) == 0 {
			return
		}
		if err := u.dropLists(ctx, lists); err != nil {
			u.log.Error("cannot sync unpacked layers to disk; those of this boot are unpacked again after a reboot; look for errors of the disk in the kernel's log", "error", err)
		}
	}
}

// noteFailed has all lists of this boot stay.
func (u *Unpacker) noteFailed() error {
	if u.syncFailed.Swap(true) {
		return nil
	}
	boot, err := sysproc.BootID()
	if err != nil {
		return err
	}
	data, err := json.Marshal(unsynced{Boot: boot, Failed: true})
	if err != nil {
		return err
	}
	if err := sysfile.ReplaceSynced(filepath.Join(u.unsyncedDir, failedNote), data); err != nil {
		return fmt.Errorf("cannot note that a sync has failed: %w", err)
	}
	return nil
}

// dropLists removes lists after a sync. A sync of a busy disk takes long and cannot be cancelled.
func (u *Unpacker) dropLists(ctx context.Context, lists []string) error {
	synced := make(chan error, 1)
	go func() { synced <- u.syncFS(u.db.Root) }()
	select {
	case err := <-synced:
		if err != nil {
			return errors.Join(err, u.noteFailed())
		}
		if u.syncFailed.Load() {
			return nil
		}
		for _, list := range lists {
			err = errors.Join(err, errs.IgnoreNotExist(os.Remove(list)))
		}
		return err
	case <-ctx.Done():
		return nil
	}
}

// foundList is a list that an earlier process has left.
type foundList struct {
	unsynced
	path string
}

// readLists reads the lists. One that cannot be read has no boot.
func (u *Unpacker) readLists() ([]foundList, error) {
	entries, err := os.ReadDir(u.unsyncedDir)
	if err != nil {
		return nil, err
	}
	var all []foundList
	for _, entry := range entries {
		list := foundList{path: filepath.Join(u.unsyncedDir, entry.Name())}
		data, err := database.ReadOwn(list.path)
		if err == nil {
			err = json.Unmarshal(data, &list.unsynced)
		}
		if err != nil {
			// If its write was interrupted before the sync, nothing was committed yet.
			u.log.Warn("removing an unreadable list of unsynced snapshots; after a loss of power run berth image fsck",
				"file", list.path, "error", err)
			list.unsynced = unsynced{}
		}
		all = append(all, list)
	}
	return all, nil
}

// CheckUnsynced removes the snapshots that a loss of power may have damaged. Call it once,
// before the first Unpack.
func (u *Unpacker) CheckUnsynced(ctx context.Context) error {
	boot, err := sysproc.BootID()
	if err != nil {
		return err
	}
	lists, err := u.readLists()
	if err != nil {
		return err
	}
	u.syncFailed.Store(slices.ContainsFunc(lists, func(list foundList) bool { return list.Failed && list.Boot == boot }))
	for _, list := range lists {
		if list.Boot == boot {
			if !u.syncFailed.Load() {
				u.syncs.begin()
				u.syncLater(list.path)
			}
			continue
		}
		for _, chain := range list.Snapshots {
			if err := u.db.DropUnsynced(ctx, chain); err != nil {
				return err
			}
		}
		if err := os.RemoveAll(list.path); err != nil {
			return err
		}
	}
	return nil
}
