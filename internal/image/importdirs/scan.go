package importdirs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// suffixes are those of the names of archives. What a file is decides its content.
func suffixes() []string {
	return []string{".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.zstd", ".tzst"}
}

// file is a file that may be imported.
type file struct {
	path string
	state
}

// state is what changes when a file is written or replaced.
type state struct {
	Size  int64  `json:"size"`
	Time  int64  `json:"time"` // of the last write, in nanoseconds
	Inode uint64 `json:"inode"`
}

func stateOf(info fs.FileInfo) state {
	s := state{Size: info.Size(), Time: info.ModTime().UnixNano()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.Inode = sys.Ino
	}
	return s
}

// sighting is since when a file is as it is.
type sighting struct {
	of state
	at time.Time
}

// scan returns the archives of directories that are to be imported now, in the order of the directories and their names,
// and how long it takes until others may be; 0 if none waits.
func (i *Importer) scan(dirs []string, now time.Time) (due []file, next time.Duration) {
	there := map[string]bool{}
	for _, dir := range dirs {
		for _, f := range i.archives(dir) {
			if there[f.path] {
				continue
			}
			there[f.path] = true
			if known, ok := i.imported().get(f.path); ok && known.state == f.state {
				continue
			}
			switch wait := i.wait(f, now); {
			case wait == 0:
				due = append(due, f)
			case wait > 0:
				next = sooner(next, wait)
			}
		}
	}
	i.settleAbsent(there)
	for path := range i.seen {
		if !there[path] {
			delete(i.seen, path)
		}
	}
	for path := range i.later {
		if !there[path] {
			delete(i.later, path)
		}
	}
	return due, next
}

// wait is how long it takes until a file may be imported: 0 if it may be now, less if never while it stays as it is.
func (i *Importer) wait(f file, now time.Time) time.Duration {
	if last, ok := i.later[f.path]; ok && last.of == f.state {
		if last.at.IsZero() {
			return -1
		}
		return max(last.at.Sub(now), 0)
	}
	last := i.seen[f.path]
	if last.of != f.state || last.at.IsZero() {
		last = sighting{of: f.state, at: now}
		i.seen[f.path] = last
	}
	since := last.at
	if written := time.Unix(0, f.Time); written.Before(since) { // a time in the future says nothing
		since = written
	}
	return max(since.Add(i.cfg.Settle).Sub(now), 0)
}

// archives are the files of a directory that look like archives, sorted by name.
func (i *Importer) archives(dir string) []file {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if text := messageOf(err); text != i.faulty[dir] {
		i.faulty[dir] = text
		if err != nil {
			i.cfg.Log.Error("cannot read a directory with archives of images (image.import_dirs)", "dir", dir, "error", err)
		}
	}
	var all []file
	for _, entry := range entries {
		if !isArchive(entry.Name()) {
			continue
		}
		path := filepath.Join(dir, entry.Name())
		// A link may lead to another directory. What is gone, or no regular file, is not to be imported.
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			all = append(all, file{path: path, state: stateOf(info)})
		}
	}
	return all
}

func messageOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// isArchive reports whether a name is that of an archive. Programs that copy files give them hidden names until they are
// complete.
func isArchive(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	for _, suffix := range suffixes() {
		if len(name) > len(suffix) && strings.HasSuffix(strings.ToLower(name), suffix) {
			return true
		}
	}
	return false
}
