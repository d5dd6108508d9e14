package rootfs

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

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// A check may find that the files of a layer are damaged while root filesystems stand on them. New root filesystems must not
// get these files, and those that are mounted must not see others: an overlay does not expect that. So the layer is unpacked
// again, and both directories are exchanged. A mount has its directories open, wherever they are. The replaced files are in
// the directory of the layer
//
//	replaced-<random>/fs       the files
//	replaced-<random>/record   how many they are, and the root filesystems that have them
//
// until the last of these is released. They go with the layer in any case: it stays while root filesystems stand on it.

// recordOfReplaced is the name of the record.
const recordOfReplaced = "record"

// replaced is the record of replaced files.
type replaced struct {
	Chain  string   `json:"chain"`
	Bytes  int64    `json:"bytes"`
	Inodes int64    `json:"inodes"`
	Users  []string `json:"users"`
}

// ReplaceLayer puts files in the place of those of a layer, in dir, that root filesystems use. These keep what was there.
// isBelow reports whether the layer is top, or below it.
func (m *Manager) ReplaceLayer(ctx context.Context, chain, dir, files string, isBelow func(top string) (bool, error)) (err error) {
	used, err := sysfile.UsageOf(ctx, nil, dir)
	if err != nil {
		return fmt.Errorf("cannot get the size of the files of layer %s: %w", chain, errs.OfDisk(err))
	}
	layer := filepath.Dir(dir)
	aside := filepath.Join(layer, database.ReplacedPrefix+strings.ToLower(rand.Text()))
	// No root filesystem begins to use the layer, and none is released.
	m.mu.Lock()
	defer m.mu.Unlock()
	r := replaced{Chain: chain, Bytes: used.Bytes, Inodes: used.Inodes}
	if r.Users, err = m.usersOf(isBelow); err != nil {
		return err
	}
	record, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.Mkdir(aside, 0o700); err != nil {
		return fmt.Errorf("cannot replace the files of layer %s: %w", chain, errs.OfDisk(err))
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("cannot replace the files of layer %s: %w", chain, errs.OfDisk(err)), m.discard(aside))
		}
	}()
	// The exchange is last: a process that ends before leaves the files where they were.
	if err := os.WriteFile(filepath.Join(aside, recordOfReplaced), record, 0o600); err != nil {
		return err
	}
	at := filepath.Join(aside, database.FilesName)
	if err := os.Rename(files, at); err != nil {
		return err
	}
	if err := unix.Renameat2(unix.AT_FDCWD, at, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE); err != nil {
		return err
	}
	m.replaced[aside] = r
	return m.dropReplaced("")
}

// usersOf returns the root filesystems of this store that use a layer. Some may have earlier files of it: that is not known of
// those which a kill has kept from being replaced, and of those which were not mounted at that time. m.mu is held.
func (m *Manager) usersOf(isBelow func(top string) (bool, error)) ([]string, error) {
	tops, users := map[string]bool{}, []string{}
	for key, u := range m.uses {
		if u.Proxy != "" {
			continue
		}
		below, known := tops[u.Chain]
		if !known {
			var err error
			if below, err = isBelow(u.Chain); err != nil {
				return nil, err
			}
			tops[u.Chain] = below
		}
		if below {
			users = append(users, key)
		}
	}
	slices.Sort(users)
	return users, nil
}

// dropReplaced notes that a root filesystem is released, and discards replaced files that no other one has. m.mu is held.
func (m *Manager) dropReplaced(key string) (err error) {
	for dir, r := range m.replaced {
		r.Users = slices.DeleteFunc(slices.Clone(r.Users), func(user string) bool { return user == key })
		m.replaced[dir] = r
		if len(r.Users) > 0 {
			continue
		}
		delete(m.replaced, dir)
		if discardErr := m.discard(dir); discardErr != nil { // the next start tries it again
			err = errors.Join(err, fmt.Errorf("cannot remove the replaced files of layer %s: %w", r.Chain, discardErr))
		}
	}
	return err
}

// loadReplaced reads which replaced files there are, and discards those that no mounted root filesystem has.
func (m *Manager) loadReplaced() error {
	dirs, err := filepath.Glob(filepath.Join(m.layersDir, "*", database.ReplacedPrefix+"*"))
	if err != nil || len(dirs) == 0 {
		return err
	}
	mounted := []string{}
	for key := range m.uses {
		for _, target := range []string{m.mountPath(key), m.mappedPath(key)} {
			is, err := sysmount.IsMountPoint(target)
			if err != nil {
				return err
			}
			if is {
				mounted = append(mounted, key)
			}
		}
	}
	slices.Sort(mounted)
	for _, dir := range dirs {
		var r replaced
		data, err := database.ReadOwn(filepath.Join(dir, recordOfReplaced))
		if err == nil {
			err = json.Unmarshal(data, &r)
		}
		if err != nil {
			m.log.Warn("cannot read who uses the replaced files of a layer; they stay until no container of today is left", "directory", dir, "error", err)
			r.Users = mounted
		}
		r.Users = slices.DeleteFunc(r.Users, func(key string) bool { return !slices.Contains(mounted, key) })
		m.replaced[dir] = r
	}
	return m.dropReplaced("")
}

// Replaced lists the replaced files of layers that root filesystems have, the largest first, and what all take on disk.
func (m *Manager) Replaced() (all []image.LayerUse, total image.Usage) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, r := range m.replaced {
		all = append(all, image.LayerUse{Chain: r.Chain, Bytes: r.Bytes, Containers: slices.Clone(r.Users)})
		total.Bytes += r.Bytes
		total.Inodes += r.Inodes
	}
	slices.SortFunc(all, func(a, b image.LayerUse) int { return int(b.Bytes - a.Bytes) })
	return all, total
}
