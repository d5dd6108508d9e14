package image

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// marker lists snapshots whose files may not be on disk yet.
//
// Databases are synced with each change, files of layers are not: unpacking would
// wait for the disk. So a marker is made, and synced, before the first snapshot
// of an image is committed, and removed once the file system has been synced in
// the background. A marker of another boot tells that power was lost in between:
// its snapshots are made again from their blobs, which are synced when fetched.
type marker struct {
	Boot      string   `json:"boot"`
	Snapshots []string `json:"snapshots"`
}

// mark makes a marker. done starts the sync, after which the marker goes.
func (s *Images) mark(chains []string) (done func(), err error) {
	boot, err := sysproc.BootID()
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(marker{Boot: boot, Snapshots: chains})
	if err != nil {
		return nil, err
	}
	path := filepath.Join(s.markersDir(), strings.ToLower(rand.Text()))
	if err := writeSynced(path, data); err != nil {
		return nil, fmt.Errorf("cannot mark snapshots as not yet on disk: %w", diskError(err))
	}
	return func() {
		s.linger(func(ctx context.Context) {
			if err := s.unmark(ctx, path); err != nil {
				s.log.Warn("cannot sync unpacked layers to disk; they are checked after a reboot", "error", err)
			}
		})
	}, nil
}

// unmark removes a marker after a sync. A sync of a busy disk takes long and cannot be cut
// short: when the store closes meanwhile the marker stays, and the next start syncs again.
func (s *Images) unmark(ctx context.Context, path string) error {
	synced := make(chan error, 1)
	go func() { synced <- sysfile.SyncFS(s.cfg.Root) }()
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

func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// checkMarkers removes the snapshots that a loss of power may have damaged.
func (s *Images) checkMarkers(ctx context.Context) error {
	boot, err := sysproc.BootID()
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(s.markersDir())
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path := filepath.Join(s.markersDir(), entry.Name())
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var m marker
		if err := json.Unmarshal(data, &m); err != nil {
			// Cut short before its sync: nothing was committed yet.
			s.log.Warn("unreadable list of unsynced snapshots removed", "file", path, "error", err)
		}
		if m.Boot == boot {
			s.linger(func(ctx context.Context) {
				if err := s.unmark(ctx, path); err != nil {
					s.log.Warn("cannot sync unpacked layers to disk", "error", err)
				}
			})
			continue
		}
		for _, chain := range m.Snapshots {
			if err := s.removeSnapshot(ctx, chain); err != nil {
				return err
			}
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}
