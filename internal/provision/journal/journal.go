package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/keyed"
	"github.com/berthrun/berth/internal/provision"
)

const (
	// keep is how many entries of the history stay.
	keep = 20
	// shorten is the number of records above which older entries go.
	shorten = 2000
	// reserved is the disk space that Begin reserves, in bytes: for the entry's own records when
	// the disk is full, and for what programs write when they undo a change (dpkg's status,
	// passwd).
	reserved = 16 << 20
)

// Journal is the journal of one machine. Its methods may be called concurrently. One
// process at a time may write; the engine's lock sees to that.
type Journal struct {
	files provision.Files
	dir   string
	now   func() time.Time
	// keeping has a lock for each content that is written.
	keeping keyed.Mutex

	mu      sync.Mutex
	records []record
	state   state
	// torn: the file ends in the middle of a line.
	torn bool
	// Bad counts lines that could not be read.
	bad int
}

// state is what the records say together.
type state struct {
	owned   []Owned // in the order in which they became ours
	entries []*Entry
	pending []string // restarts that are due
	current *Entry
	made    []string // directories made for the journal
	base    []Prior  // what objects were at the end of the entries that were shortened away
	given   []Prior  // those of base that are packages in a version that one of these entries gave them
}

// Open reads the journal in dir, which need not exist.
func Open(files provision.Files, dir string, now func() time.Time) (*Journal, error) {
	j := &Journal{files: files, dir: dir, now: now}
	r, err := files.Open(j.file())
	if errors.Is(err, errs.NotFound) {
		return j, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the journal: %w", err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("cannot read the journal: %w", err)
	}
	for line := range bytes.Lines(data) {
		j.torn = !bytes.HasSuffix(line, []byte("\n"))
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var rec record
		if err := json.Unmarshal(line, &rec); err != nil {
			if !j.torn {
				j.bad++
			}
			continue
		}
		j.records = append(j.records, rec)
		j.state.add(rec)
	}
	return j, nil
}

func (j *Journal) file() string { return j.dir + "/journal" }

// Bad is the number of lines that could not be read: not cut short by a crash, but damaged.
func (j *Journal) Bad() int { return j.bad }

// Begin starts an entry and returns its number. nodeFile is the text of the node file, or nil.
func (j *Journal) Begin(b Begin, nodeFile []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var err error
	if b.Made, err = j.makeDir(); err != nil {
		return 0, err
	}
	if err := j.files.Reserve(j.reserve(), reserved); err != nil {
		return 0, fmt.Errorf("there would be no room to undo: %w", err)
	}
	if nodeFile != nil {
		digest, err := j.keepBytes(nodeFile)
		if err != nil {
			return 0, err
		}
		b.NodeFile = digest
	}
	n := 1
	if len(j.state.entries) > 0 {
		n = j.state.entries[len(j.state.entries)-1].Number + 1
	}
	return n, j.append(record{Apply: n, Begin: &b})
}

func (j *Journal) reserve() string { return j.dir + "/reserve" }

// Release frees the space that Begin reserved: what follows may need it.
func (j *Journal) Release() error {
	if err := j.files.Remove(j.reserve()); err != nil {
		return fmt.Errorf("cannot give back the room that was taken to undo: %w", err)
	}
	return nil
}

// Touch records what objects are before a task changes them. Their contents must have been kept.
// Objects that this entry touched before are skipped: their present state is this entry's work.
// Objects that are not ours yet become ours.
func (j *Journal) Touch(task string, restarts []string, before []Prior) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var fresh []Prior
	var own []Owned
	for _, p := range before {
		if !j.state.current.touched(p.Object) {
			fresh = append(fresh, p)
		}
		if i := j.state.find(p.Object); i < 0 {
			own = append(own, Owned{Prior: p, Task: task, Since: j.state.current.Number, Restarts: restarts})
		} else if o := j.state.owned[i]; o.Task != task || !slices.Equal(o.Restarts, restarts) {
			o.Task, o.Restarts = task, restarts
			own = append(own, o)
		}
	}
	if len(fresh) == 0 && len(own) == 0 {
		return nil
	}
	return j.append(record{Touch: &touch{Task: task, Before: fresh}, Own: own})
}

// Own makes objects ours that are already as wanted.
func (j *Journal) Own(task string, restarts []string, now []Prior) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var own []Owned
	for _, p := range now {
		if i := j.state.find(p.Object); i < 0 {
			own = append(own, Owned{Prior: p, Task: task, Since: j.state.current.Number, Restarts: restarts})
		} else if o := j.state.owned[i]; o.Task != task {
			o.Task, o.Restarts = task, restarts
			own = append(own, o)
		}
	}
	if len(own) == 0 {
		return nil
	}
	return j.append(record{Own: own})
}

// Reown makes objects ours as they were recorded before.
func (j *Journal) Reown(list []Owned) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(list) == 0 {
		return nil
	}
	return j.append(record{Own: list})
}

// Leave records that objects are no longer ours: they are as they were before.
func (j *Journal) Leave(objects []provision.Object) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var list []Owned
	for _, o := range j.state.owned {
		if slices.Contains(objects, o.Object) {
			list = append(list, o)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return j.append(record{Leave: list})
}

// Done records that a task is as wanted, and what its objects are now.
func (j *Journal) Done(task string, after []Prior) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.append(record{Done: &done{Task: task, After: after}})
}

// WantRestart records, before anything changes, that units must be restarted.
func (j *Journal) WantRestart(units []string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	units = slices.DeleteFunc(slices.Clone(units), func(u string) bool { return slices.Contains(j.state.pending, u) })
	if len(units) == 0 {
		return nil
	}
	return j.append(record{Want: units})
}

// Restarted records that units have been restarted, or need not be.
func (j *Journal) Restarted(units []string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(units) == 0 {
		return nil
	}
	return j.append(record{Again: units})
}

// End closes the entry, and shortens the journal if it has grown long. It frees the space that
// Begin reserved.
func (j *Journal) End(result Result, cause error) error {
	if err := j.Release(); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	end := endRecord{Result: result}
	if cause != nil {
		end.Error = cause.Error()
	}
	if err := j.append(record{End: &end}); err != nil {
		return err
	}
	if len(j.records) <= shorten {
		return nil
	}
	return j.shorten()
}

// append makes rec durable, then part of the state. Callers hold mu.
func (j *Journal) append(rec record) error {
	if rec.Apply == 0 && j.state.current != nil {
		rec.Apply = j.state.current.Number
	}
	rec.Time = j.now().UTC().Truncate(time.Millisecond)
	data, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("cannot write the journal: %w", err)
	}
	if j.torn {
		data = append([]byte("\n"), data...)
	}
	// Until it is known to be written, the line may be cut short.
	j.torn = true
	if err := j.files.Append(j.file(), append(data, '\n'), provision.Attr{Mode: 0o600}); err != nil {
		return fmt.Errorf("cannot write the journal: %w", err)
	}
	j.torn = false
	j.records = append(j.records, rec)
	j.state.add(rec)
	return nil
}

// makeDir makes the journal's directory and returns what was missing of its path. The directory
// right above it is berth's own: while nothing else is in it, a process that was killed before the
// first record created it.
func (j *Journal) makeDir() (made []string, err error) {
	if err := j.files.Tidy(j.dir); err != nil {
		return nil, fmt.Errorf("cannot make the journal's directory: %w", err)
	}
	first := len(j.records) == 0
	at := ""
	for part := range strings.SplitSeq(strings.Trim(j.dir, "/"), "/") {
		at += "/" + part
		attr := provision.Attr{Mode: 0o755}
		if at == j.dir {
			attr.Mode = 0o700
		}
		names, err := j.files.ReadDir(at)
		ours := first && at == path.Dir(j.dir) && (len(names) == 0 || len(names) == 1 && names[0] == path.Base(j.dir))
		if errors.Is(err, errs.NotFound) || ours {
			made = append(made, at)
		}
		if err := j.files.Mkdir(at, attr); err != nil {
			return nil, fmt.Errorf("cannot make the journal's directory: %w", err)
		}
	}
	return made, nil
}

// Erase removes the journal's directory with all that is in it, and of the directories
// above it those that were made for it and are empty.
func (j *Journal) Erase() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := errors.Join(j.removeAll(j.dir), j.files.Tidy(j.dir)); err != nil {
		return fmt.Errorf("cannot remove the journal: %w", err)
	}
	made := j.state.made
	if len(j.records) == 0 { // no entry was begun: the files are from fetching
		made = []string{path.Dir(j.dir)}
	}
	for _, dir := range slices.Backward(made) {
		names, err := j.files.ReadDir(dir)
		if errors.Is(err, errs.NotFound) {
			err = j.files.Tidy(dir)
		} else if err == nil && len(names) == 0 {
			err = j.files.Remove(dir)
		}
		if errs.IgnoreNotFound(err) != nil {
			return fmt.Errorf("cannot remove the journal's directory: %w", err)
		}
	}
	return nil
}

// removeAll removes what lies in dir; the journal goes last, so that a crash leaves it.
func (j *Journal) removeAll(dir string) error {
	names, err := j.files.ReadDir(dir)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(lastName(a), lastName(b)) })
	for _, name := range names {
		at := dir + "/" + name
		info, err := j.files.Stat(at)
		if err == nil && info.Type.IsDir() {
			err = j.removeAll(at)
		} else if err == nil {
			err = j.files.Remove(at)
		}
		if errs.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return j.files.Remove(dir)
}

// lastName sorts the journal behind all else.
func lastName(name string) string {
	if name == "journal" {
		return "~"
	}
	return name
}
