package importdirs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// FileName is the name of the list's file below the root of an image store.
const FileName = "imported.json"

const (
	version = 1
	// maxFile bounds what is read of the list, and maxRecords what is kept.
	maxFile    = 16 << 20
	maxRecords = 2000
)

// Forget removes the list below a store's root. The next start imports all archives again.
func Forget(root string) error { return errs.IgnoreNotExist(os.Remove(filepath.Join(root, FileName))) }

// record is an archive that is not to be read again while its state stays. If the state changes and the size does not, the
// digest decides: a file that was copied again, or got another time, has the same images.
type record struct {
	Path string `json:"path"`
	state
	// Digest is that of the file, "" if it was not read to its end.
	Digest digest.Digest `json:"digest,omitempty"`
	// Names are the tags and digests of its images.
	Names []string `json:"names,omitempty"`
	// Pinned are the ids of those images that imports from directories have pinned, and nobody else.
	Pinned []string `json:"pinned,omitempty"`
	// Error is why it cannot be imported.
	Error string `json:"error,omitempty"`
}

// content is what the file has.
type content struct {
	Version  int      `json:"version"`
	Archives []record `json:"archives"`
}

// list is what was imported, the oldest first.
type list struct {
	path string
	log  *slog.Logger
	mu   sync.Mutex
	all  []record
	// kept are the images of all calls of keep: an archive that is being imported may have one.
	kept map[string]bool
}

// readList reads the list. One that cannot be read is empty, and logged: to import an archive again changes nothing, except
// that images which were removed come back.
func readList(root string, log *slog.Logger) *list {
	l := &list{path: filepath.Join(root, FileName), log: log, kept: map[string]bool{}}
	data, err := sysfile.ReadRegular(l.path, maxFile)
	if errors.Is(err, errs.NotFound) {
		return l
	}
	var found content
	if err == nil {
		err = json.Unmarshal(data, &found)
	}
	if err == nil && found.Version != version {
		err = fmt.Errorf("it has version %d, want %d", found.Version, version)
	}
	if err != nil {
		log.Warn("cannot read the list of imported archives; all archives of image.import_dirs are imported again", "file", l.path, "error", err)
		return l
	}
	l.all = found.Archives
	return l
}

func (l *list) get(path string) (record, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := l.index(path); at >= 0 {
		return l.all[at], true
	}
	return record{}, false
}

func (l *list) index(path string) int {
	return slices.IndexFunc(l.all, func(r record) bool { return r.Path == path })
}

// put makes a record the newest, and drops the oldest beyond a bound. Records of files that are gone stay: a disk may be
// mounted again.
func (l *list) put(made record) {
	l.change(func(all []record) []record {
		made.Pinned = slices.DeleteFunc(slices.Clone(made.Pinned), func(id string) bool { return l.kept[id] })
		all = append(slices.DeleteFunc(all, func(r record) bool { return r.Path == made.Path }), made)
		if len(all) > maxRecords {
			all = slices.DeleteFunc(all, func(r record) bool {
				_, err := os.Lstat(r.Path)
				return errors.Is(err, fs.ErrNotExist)
			})
		}
		return all
	})
}

// with returns the archives that have images with any of these names, the oldest first.
func (l *list) with(names []string) []record {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []record
	for _, r := range l.all {
		if r.has(names) {
			all = append(all, r)
		}
	}
	return all
}

func (r record) has(names []string) bool {
	return slices.ContainsFunc(r.Names, func(name string) bool { return slices.Contains(names, name) })
}

// pins reports whether an archive has pinned an image.
func (l *list) pins(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.all, func(r record) bool { return slices.Contains(r.Pinned, id) })
}

// outdated are the images that the former content of an archive has pinned, and neither its new one nor another archive.
func (l *list) outdated(made record) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.index(made.Path)
	if at < 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(l.all[at].Pinned), func(id string) bool {
		return slices.Contains(made.Pinned, id) ||
			slices.ContainsFunc(l.all, func(r record) bool { return r.Path != made.Path && slices.Contains(r.Pinned, id) })
	})
}

// keep notes that images are pinned by somebody else, too.
func (l *list) keep(ids []string) {
	kept := func(id string) bool { return slices.Contains(ids, id) }
	l.mu.Lock()
	for _, id := range ids {
		l.kept[id] = true
	}
	some := slices.ContainsFunc(l.all, func(r record) bool { return slices.ContainsFunc(r.Pinned, kept) })
	l.mu.Unlock()
	if !some {
		return
	}
	l.change(func(all []record) []record {
		for at := range all {
			all[at].Pinned = slices.DeleteFunc(slices.Clone(all[at].Pinned), kept)
		}
		return all
	})
}

// readAgain makes archives with any of these names due, and returns them. They stay on the list, which says whose images they
// have.
func (l *list) readAgain(names []string) []record {
	found := l.with(names)
	if len(found) == 0 {
		return nil
	}
	l.change(func(all []record) []record {
		for at := range all {
			if all[at].has(names) {
				all[at].state, all[at].Digest = state{}, ""
			}
		}
		return all
	})
	return found
}

// change only logs a failure: the next start imports again what is not on the list.
func (l *list) change(change func([]record) []record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = change(l.all)
	data, err := json.MarshalIndent(content{Version: version, Archives: l.all}, "", " ")
	if err == nil {
		err = sysfile.ReplaceSynced(l.path, append(data, '\n'))
	}
	if err != nil {
		l.log.Warn("cannot write the list of imported archives; the next start imports archives again", "file", l.path, "error", err)
	}
}
