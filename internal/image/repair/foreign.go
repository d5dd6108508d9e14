package repair

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/importdirs"
	"github.com/berthrun/berth/internal/image/lost"
	"github.com/berthrun/berth/internal/image/snapshotters"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// The store removes what it does not know from its directories, and waits for what it reads. So none of
// them may be a link, which leads out of the store, and none of its files a named pipe.

// ownDirectories are the directories of a store, those above first; ownFiles are its files.
func ownDirectories() []string {
	return []string{"content", "content/blobs", "content/ingest", "snapshots", "snapshots/snapshots", "containers", "copies", "pool", "trash", "unsynced", "erofs", "erofs/layers", "erofs/new"}
}

func ownFiles() []string {
	return []string{"metadata.db", "snapshots/metadata.db", "names.json", lost.FileName, importdirs.FileName, snapshotters.FileName, "closed", "rebuilding"}
}

// SetForeignAside moves to the quarantine what is in the place of a directory or a file of the store, but
// of another type, and what is among the blobs without being one. It follows no link. What is set aside
// is missing then, and is made again.
func (r Repairer) SetForeignAside() error {
	a := &aside{Repairer: r}
	if fi, err := os.Lstat(r.QuarantineDir()); err == nil && !fi.IsDir() {
		if err := os.Rename(r.QuarantineDir(), r.QuarantineDir()+time.Now().UTC().Format("-20060102T150405.000000000Z")); err != nil {
			return err
		}
	}
	for _, name := range ownDirectories() {
		if err := a.unless(name, fs.FileMode.IsDir); err != nil {
			return err
		}
	}
	for _, name := range ownFiles() {
		if err := a.unless(name, fs.FileMode.IsRegular); err != nil {
			return err
		}
	}
	for _, name := range []string{"containers", "copies"} {
		if err := a.rootFilesystems(name); err != nil {
			return err
		}
	}
	if err := a.blobs(); err != nil {
		return err
	}
	return a.report()
}

// aside is what is set aside at one start.
type aside struct {
	Repairer
	dir   string
	found []string
}

// unless sets an object aside unless it is absent or of the right type.
func (a *aside) unless(name string, right func(fs.FileMode) bool) error {
	fi, err := os.Lstat(filepath.Join(a.Paths.Root, name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case right(fi.Mode()):
		return nil
	}
	return a.move(name, fi.Mode())
}

func (a *aside) move(name string, mode fs.FileMode) error {
	if a.dir == "" {
		if err := os.MkdirAll(a.QuarantineDir(), 0o700); err != nil {
			return err
		}
		var err error
		if a.dir, err = os.MkdirTemp(a.QuarantineDir(), time.Now().UTC().Format("20060102T150405Z-")); err != nil {
			return err
		}
	}
	text := fmt.Sprintf("%s was %s", name, database.TypeOf(mode))
	if target, err := os.Readlink(filepath.Join(a.Paths.Root, name)); err == nil {
		text += " to " + target + ", and the store follows none"
	}
	a.found = append(a.found, text)
	return os.Rename(filepath.Join(a.Paths.Root, name), filepath.Join(a.dir, strings.ReplaceAll(name, "/", "-")))
}

// rootFilesystems sets aside all entries among the root filesystems except directories. The store would write a record
// through a link, and would wait forever for a named pipe.
func (a *aside) rootFilesystems(dir string) error {
	entries, err := os.ReadDir(filepath.Join(a.Paths.Root, dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := a.unless(filepath.Join(dir, entry.Name()), fs.FileMode.IsDir); err != nil {
			return err
		}
	}
	return nil
}

// blobs sets aside what is among the blobs but is none: the content store cannot remove it.
func (a *aside) blobs() error {
	top := filepath.Join("content", "blobs")
	algorithms, err := os.ReadDir(filepath.Join(a.Paths.Root, top))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, algorithm := range algorithms {
		dir := filepath.Join(top, algorithm.Name())
		if !algorithm.IsDir() {
			if err := a.move(dir, algorithm.Type()); err != nil {
				return err
			}
			continue
		}
		blobs, err := os.ReadDir(filepath.Join(a.Paths.Root, dir))
		if err != nil {
			return err
		}
		for _, blob := range blobs {
			name := digest.NewDigestFromEncoded(digest.Algorithm(algorithm.Name()), blob.Name())
			if blob.IsDir() || digest.Algorithm(algorithm.Name()).Available() && name.Validate() != nil {
				if err := a.move(filepath.Join(dir, blob.Name()), blob.Type()); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (a *aside) report() error {
	if len(a.found) == 0 {
		return nil
	}
	made := report{At: time.Now().UTC(), Foreign: a.found}
	data, err := json.MarshalIndent(made, "", "  ")
	if err != nil {
		return err
	}
	a.Log.Error(made.text(a.dir, ""), "quarantine", a.dir)
	return sysfile.ReplaceSynced(filepath.Join(a.dir, reportName), data)
}
