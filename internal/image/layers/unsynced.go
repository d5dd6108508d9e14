package layers

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

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
type unsynced struct {
	Boot      string   `json:"boot"`
	Snapshots []string `json:"snapshots"`
}

// listUnsynced writes a list. done starts the sync, after which the list is removed.
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
	if err := sysfile.WriteSynced(path, data); err != nil {
		return nil, fmt.Errorf("cannot mark snapshots as not yet on disk: %w", errs.OfDisk(err))
	}
	return func() {
		u.background.GoUntilTimeout(func(ctx context.Context) {
			if err := u.dropList(ctx, path); err != nil {
				u.log.Warn("cannot sync unpacked layers to disk; they are checked after a reboot", "error", err)
			}
		})
	}, nil
}

// dropList removes a list after a sync. A sync of a busy disk takes long and cannot be
// cancelled. If the store closes first, the list stays, and the next start syncs again.
func (u *Unpacker) dropList(ctx context.Context, path string) error {
	synced := make(chan error, 1)
	go func() { synced <- sysfile.SyncFS(u.db.Root) }()
	select {
	case err := <-synced:
		if err != nil {
			return err
		}
		return os.Remove(path)
	case <-ctx.Done():
		return nil
	}
}

// CheckUnsynced removes the snapshots that a loss of power may have damaged. Call it once,
// before the first Unpack.
func (u *Unpacker) CheckUnsynced(ctx context.Context) error {
	boot, err := sysproc.BootID()
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(u.unsyncedDir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path := filepath.Join(u.unsyncedDir, entry.Name())
		var list unsynced
		data, err := database.ReadOwn(path)
		if err == nil {
			err = json.Unmarshal(data, &list)
		}
		if err != nil {
			// If its write was interrupted before the sync, nothing was committed yet.
			u.log.Warn("removing an unreadable list of unsynced snapshots; after a loss of power run berth image fsck",
				"file", path, "error", err)
			list = unsynced{}
		}
		if list.Boot == boot {
			u.background.GoUntilTimeout(func(ctx context.Context) {
				if err := u.dropList(ctx, path); err != nil {
					u.log.Warn("cannot sync unpacked layers to disk", "error", err)
				}
			})
			continue
		}
		for _, chain := range list.Snapshots {
			if err := u.db.DropUnsynced(ctx, chain); err != nil {
				return err
			}
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}
