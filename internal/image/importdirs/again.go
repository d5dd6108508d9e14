package importdirs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/archive"
)

// Extract takes a blob from an archive that images with any of the names come from. It tries the newest archive first, also if
// its file has changed since the import: the digest decides. It returns the archive, "" and no error if none is known. The
// error names each archive that does not have the blob; Unavailable or Exhausted if a later attempt may succeed.
func (i *Importer) Extract(ctx context.Context, names []string, want imagespec.Descriptor, to archive.Target, got func(int64)) (from string, err error) {
	var all []error
	for _, path := range i.archivesOf(names) {
		err := extract(ctx, path, want, to, got)
		if err == nil {
			return path, nil
		}
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		all = append(all, fmt.Errorf("archive %s: %w", path, err))
	}
	return "", errors.Join(all...)
}

func extract(ctx context.Context, path string, want imagespec.Descriptor, to archive.Target, got func(int64)) error {
	opened, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("it is gone: %w", errs.NotFound)
	}
	if err != nil {
		return fmt.Errorf("cannot open it: %w", err)
	}
	defer opened.Close()
	if info, err := opened.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.Join(fmt.Errorf("it is not a regular file: %w", errs.Invalid), err)
	}
	return archive.Extract(ctx, opened, want, to, got)
}

// archivesOf returns the archives that images with any of the names come from, the newest first.
func (i *Importer) archivesOf(names []string) []string {
	dirs := i.rules.Load().Dirs
	var all []string
	for _, r := range i.imported().with(names) {
		if slices.ContainsFunc(dirs, func(dir string) bool { return filepath.Clean(dir) == filepath.Dir(r.Path) }) {
			all = append(all, r.Path)
		}
	}
	slices.Reverse(all)
	return all
}

// waiting are the archives that are read again because the store has lost images of theirs.
type waiting struct {
	// begun is closed once paths is filled.
	begun chan struct{}
	// paths has a channel for each, which is closed when the archive was read or is gone.
	paths map[string]chan struct{}
}

// AwaitLost returns when no archive is to be read again for lost images with any of the names: it was imported, or cannot be now.
func (i *Importer) AwaitLost(ctx context.Context, names []string) error {
	all := []chan struct{}{i.again.begun}
	for n := 0; n < len(all); n++ {
		select {
		case <-all[n]:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if n > 0 {
			continue
		}
		i.againMu.Lock()
		for _, r := range i.imported().with(names) {
			if read := i.again.paths[r.Path]; read != nil {
				all = append(all, read)
			}
		}
		i.againMu.Unlock()
	}
	return nil
}

// readAgain has Run read the archives that had any of the names.
func (i *Importer) readAgain(names []string) {
	i.againMu.Lock()
	defer i.againMu.Unlock()
	for _, r := range i.imported().readAgain(names) {
		i.again.paths[r.Path] = make(chan struct{})
	}
	close(i.again.begun)
}

// settle ends the wait for an archive.
func (i *Importer) settle(path string) {
	i.againMu.Lock()
	defer i.againMu.Unlock()
	if read := i.again.paths[path]; read != nil {
		close(read)
		delete(i.again.paths, path)
	}
}

// settleAbsent ends the wait for archives whose files are not there.
func (i *Importer) settleAbsent(there map[string]bool) {
	i.againMu.Lock()
	var absent []string
	for path := range i.again.paths {
		if !there[path] {
			absent = append(absent, path)
		}
	}
	i.againMu.Unlock()
	for _, path := range absent {
		i.settle(path)
	}
}
