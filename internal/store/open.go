package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

const suffix = ".json"

// Quarantined is a file that could not be read, and is in the quarantine now.
type Quarantined struct {
	// Path is where the file is now, or where it still is when it could not be
	// moved. It is where the file was if it is lost.
	Path string
	// Err says what is wrong with it.
	Err error
	// Lost is true for an empty file of a record that a loss of power took before it was synced. It is not in
	// the quarantine; see Options.Unsynced.
	Lost bool
}

// Open reads a directory of records. It moves a file that is not a record to the
// quarantine, or drops it (Options.Unsynced), and reports it; only a directory that cannot be made or read at all is an
// error. If a record has the methods Validate() error or RecordID() string, Open calls
// them: the id inside the record, which the undo uses, must be the file's.
func Open[T any](opts Options[T]) (*Dir[T], []Quarantined, error) {
	if err := os.MkdirAll(opts.Path, 0o700); err != nil {
		return nil, nil, fmt.Errorf("cannot make the directory of records: %w", err)
	}
	if _, plain := opts.Disk.(FileSystem); plain || opts.Disk == nil {
		opts.Disk = FileSystem{sysfile.KeepReserve(opts.Path + reserveSuffix)}
	}
	files, err := os.ReadDir(opts.Path)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read the directory of records: %w", err)
	}
	d := &Dir[T]{
		opts: opts, entries: make(map[string]*entry[T], len(files)), names: map[string][]string{},
		groups: map[string]map[string]*entry[T]{}, version: 1,
	}
	var bad []Quarantined
	var paths []string
	for _, f := range files {
		path := filepath.Join(opts.Path, f.Name())
		if !strings.HasPrefix(f.Name(), sysfile.TempPrefix) {
			paths = append(paths, path)
			continue
		}
		// A killed writer left this file; the record itself is complete.
		if err := os.Remove(path); err != nil {
			bad = append(bad, Quarantined{Path: path, Err: err})
		}
	}
	readAll(paths, func(path, id string, value *T, err error) {
		if err != nil && opts.Unsynced && emptyFromEarlierBoot(path) && dropLost(path, opts.KeepLost) == nil {
			bad = append(bad, Quarantined{path, errLost, true})
			return
		}
		if err != nil {
			bad = append(bad, quarantine(opts.Quarantine, path, err))
			return
		}
		e := &entry[T]{value: value}
		d.entries[id] = e
		d.joinGroup(value, id, e)
		if opts.Name != nil {
			d.addName(opts.Name(value), id)
		}
	})
	return d, bad, nil
}

// Read reads one record of a directory that another process owns, as Open does, and changes nothing. A file that is gone is
// an error of os.ErrNotExist.
func Read[T any](path string) (value *T, err error) {
	err = errs.Guard("reading of "+path, func() (err error) {
		_, value, err = new(reader[T]).read(path)
		return err
	})
	return value, err
}

// readAll reads files of records with all processors, and calls done with each, one at a time.
func readAll[T any](paths []string, done func(path, id string, value *T, err error)) {
	var (
		mu      sync.Mutex
		next    atomic.Int64
		readers sync.WaitGroup
	)
	for range min(runtime.GOMAXPROCS(0), len(paths)) {
		readers.Go(func() {
			var r reader[T]
			for {
				i := int(next.Add(1)) - 1
				if i >= len(paths) {
					return
				}
				var id string
				var value *T
				err := errs.Guard("reading of "+paths[i], func() (err error) {
					id, value, err = r.read(paths[i])
					return err
				})
				mu.Lock()
				done(paths[i], id, value, err)
				mu.Unlock()
			}
		})
	}
	readers.Wait()
}

// reader reads records, one after the other.
type reader[T any] struct {
	file []byte
	// short is the record without what need not be decoded.
	short []byte
}

func (r *reader[T]) read(path string) (string, *T, error) {
	if err := r.load(path); err != nil {
		return "", nil, err
	}
	data := r.file
	r.short = appendWithoutTexts(r.short[:0], data)
	var all envelope[T]
	damaged := json.Unmarshal(r.short, &all)
	if damaged != nil {
		// A key of a map could look like a binary form. The whole record decides.
		all = envelope[T]{}
		damaged = json.Unmarshal(data, &all)
	}
	if damaged != nil {
		// A later version may have another form; then the version is at fault.
		var head struct {
			Version int `json:"version"`
		}
		if json.Unmarshal(data, &head) == nil {
			all.Version = head.Version
		} else {
			all.Version = Version
		}
	}
	switch {
	case all.Version > Version+1:
		return "", nil, fmt.Errorf("a later berth wrote the record, which has version %d: this berth reads 1 to %d", all.Version, Version+1)
	case all.Version < 1:
		return "", nil, fmt.Errorf("the record is damaged: it has version %d", all.Version)
	case damaged != nil:
		return "", nil, fmt.Errorf("the record is damaged: %w", damaged)
	case all.ID+suffix != filepath.Base(path):
		return "", nil, fmt.Errorf("the file has the record of %q instead", all.ID)
	}
	value := all.Record
	if value == nil {
		return "", nil, errors.New("the record is empty")
	}
	if v, ok := any(value).(interface{ RecordID() string }); ok && v.RecordID() != all.ID {
		return "", nil, fmt.Errorf("the record of %q has the content of %q", all.ID, v.RecordID())
	}
	if v, ok := any(value).(interface{ Validate() error }); ok {
		if err := v.Validate(); err != nil {
			return "", nil, fmt.Errorf("the record is damaged: %w", err)
		}
	}
	return all.ID, value, nil
}

// load reads a file. It makes the system calls itself: a start reads thousands of small files, and an os.File costs as
// much as the reading.
func (r *reader[T]) load(path string) error {
	fd, err := retried(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	r.file = r.file[:0]
	for {
		r.file = slices.Grow(r.file, 4096)
		n, err := retried(func() (int, error) { return unix.Read(fd, r.file[len(r.file):cap(r.file)]) })
		if err != nil {
			return &os.PathError{Op: "read", Path: path, Err: err}
		}
		if n == 0 {
			return nil
		}
		r.file = r.file[:len(r.file)+n]
	}
}

// retried repeats a system call that a signal has interrupted.
func retried(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// quarantine moves a file to the quarantine, under a name with its former place and the time.
func quarantine(dir, path string, why error) Quarantined {
	name := fmt.Sprintf("%s-%s-%d", filepath.Base(filepath.Dir(path)), filepath.Base(path), time.Now().UnixNano())
	to := filepath.Join(dir, name)
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = move(path, to)
	}
	if err != nil {
		return Quarantined{Path: path, Err: errors.Join(why, fmt.Errorf("cannot move it aside: %w", err))}
	}
	return Quarantined{Path: to, Err: why}
}

// errLost is what is wrong with a file that is lost.
var errLost = errors.New("the record is empty: the power went before its content was on the disk")

// emptyFromEarlierBoot reports whether a file is empty and was written before the machine started, or by a clock that
// was ahead of the present one. In the boot in which a record was written its file is never empty.
func emptyFromEarlierBoot(path string) bool {
	info, err := os.Lstat(path)
	var up unix.Timespec
	if err != nil || !info.Mode().IsRegular() || info.Size() > 0 || unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return false
	}
	now := time.Now()
	return info.ModTime().Before(now.Add(-time.Duration(up.Nano()))) || info.ModTime().After(now)
}

// dropLost removes a file, or moves it into the directory keep.
func dropLost(path, keep string) error {
	if keep == "" {
		return errs.IgnoreNotExist(os.Remove(path))
	}
	if err := os.MkdirAll(keep, 0o700); err != nil {
		return err
	}
	return os.Rename(path, filepath.Join(keep, filepath.Base(path)))
}

// move is a rename that also works from one file system to another.
func move(from, to string) error {
	if os.Rename(from, to) == nil {
		return nil
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to, data, 0o600); err != nil {
		return err
	}
	return os.Remove(from)
}
