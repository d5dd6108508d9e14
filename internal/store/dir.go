// Package store keeps records: one JSON file each, in a directory of one kind,
// with all of them in memory as well.
//
// It owns the format of records on disk (atomic replacement, versions, quarantine of
// unreadable files) and the ways to find them (id, unambiguous prefix, name). It does
// not know what they mean.
package store

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/berthrun/berth/internal/errs"
)

// Version is written into every record. A record of one version newer is still
// read, so that an upgrade can be taken back; one newer than that is not.
const Version = 1

// Options configure a Dir.
type Options[T any] struct {
	// Path is the directory; it is made if absent.
	Path string
	// Quarantine is where files go that cannot be read.
	Quarantine string
	// Disk is how files are written; nil means FileSystem{}.
	Disk Disk
	// Name returns the name under which ByName finds a record; nil when records
	// of this kind have no name but their id.
	Name func(*T) string
	// Prior orders records of one name, negative when a comes before b: ByName finds
	// the first. Those that it finds equal follow their ids.
	Prior func(a, b *T) int
	// Group returns the group under which InGroup finds a record; it never changes. Nil when
	// records of this kind have no groups.
	Group func(*T) string
	// Whole reports whether a record is synced before it replaces the file, so that a loss of power never
	// leaves it empty. Dir.Sync makes such records durable. Nil for none.
	Whole func(*T) bool
	// Unsynced is true if nobody relies on records that were not synced. An empty file from an earlier
	// boot, which a loss of power leaves of such a record, is no damage then: Open removes it. If KeepLost
	// is not "", Open moves it into that directory, where its name stays.
	Unsynced bool
	KeepLost string
	// Changed, if not nil, is called after each change, once readers see it: old is nil
	// for a new record, new for one that is gone. Changes of one record come one
	// after the other, in order. It must not write to the Dir.
	Changed func(old, new *T)
}

// Dir holds the records of one kind. All methods are safe for concurrent use.
//
// A *T that a Dir returns is an immutable snapshot: neither the reader nor the Dir
// changes it. Update works on a shallow copy, so its function replaces slices, maps and
// pointers and never writes through them.
type Dir[T any] struct {
	opts Options[T]

	mu      sync.RWMutex
	entries map[string]*entry[T]
	// names has the ids of the records of each name: one, unless files were restored
	// or copied.
	names map[string][]string
	// groups has the records of each group, by id.
	groups map[string]map[string]*entry[T]
	// version changes with every record, and is never 0.
	version uint64
}

// entry is one record. writing serialises its writers, so that a slow disk delays one
// record and not the directory.
type entry[T any] struct {
	writing sync.Mutex
	value   *T // guarded by Dir.mu; nil once deleted
}

// envelope is a record as it lies on disk.
type envelope[T any] struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
	Record  *T     `json:"record"`
}

// Create adds a record. Exists when there is one of this id.
func (d *Dir[T]) Create(id string, value *T) error {
	e := &entry[T]{}
	e.writing.Lock()
	defer e.writing.Unlock()

	d.mu.Lock()
	if _, taken := d.entries[id]; taken {
		d.mu.Unlock()
		return fmt.Errorf("cannot create record %q: %w", id, errs.Exists)
	}
	d.entries[id] = e
	d.mu.Unlock()

	if err := d.write(id, value); err != nil {
		d.mu.Lock()
		delete(d.entries, id)
		d.mu.Unlock()
		// A write that failed may have left the file all the same.
		return errors.Join(err, d.opts.Disk.Remove(d.file(id)))
	}
	d.publish(id, e, value)
	d.changed(nil, value)
	return nil
}

// Update changes the record of a full id: fn gets a shallow copy, and what fn
// made of it is written and becomes the record. When fn fails, its error is
// returned and nothing changes.
func (d *Dir[T]) Update(id string, fn func(*T) error) (*T, error) {
	d.mu.RLock()
	e := d.entries[id]
	d.mu.RUnlock()
	if e == nil {
		return nil, d.notFound(id)
	}
	e.writing.Lock()
	defer e.writing.Unlock()

	d.mu.RLock()
	current := e.value
	d.mu.RUnlock()
	if current == nil {
		return nil, d.notFound(id)
	}
	next := *current
	if err := fn(&next); err != nil {
		return nil, err
	}
	if err := d.write(id, &next); err != nil {
		return nil, err
	}
	d.publish(id, e, &next)
	d.changed(current, &next)
	return &next, nil
}

// Delete removes the record of a full id. Nil when there is none.
func (d *Dir[T]) Delete(id string) error {
	d.mu.RLock()
	e := d.entries[id]
	d.mu.RUnlock()
	if e == nil {
		return nil
	}
	e.writing.Lock()
	defer e.writing.Unlock()
	if err := d.opts.Disk.Remove(d.file(id)); err != nil {
		return fmt.Errorf("cannot delete record %q: %w", id, err)
	}
	if gone := d.forget(id, e); gone != nil {
		d.changed(gone, nil)
	}
	return nil
}

// forget takes a record out of memory and returns what it was.
func (d *Dir[T]) forget(id string, e *entry[T]) *T {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.entries[id] != e {
		return nil
	}
	gone := e.value
	if gone != nil && d.opts.Name != nil {
		d.forgetName(d.opts.Name(gone), id)
	}
	if gone != nil {
		d.leaveGroup(gone, id)
		d.version++
	}
	e.value = nil
	delete(d.entries, id)
	return gone
}

// changed calls Options.Changed. The caller holds the record's writing lock and no
// other.
func (d *Dir[T]) changed(old, new *T) {
	if d.opts.Changed != nil {
		d.opts.Changed(old, new)
	}
}

// Get returns the record of a full id.
func (d *Dir[T]) Get(id string) (*T, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if e := d.entries[id]; e != nil && e.value != nil {
		return e.value, nil
	}
	return nil, d.notFound(id)
}

// Resolve turns an id or an unambiguous prefix of one into the full id. visible,
// if not nil, hides records from prefixes (a full id always resolves). NotFound
// when nothing matches; Invalid, naming the candidates, when several do.
func (d *Dir[T]) Resolve(prefix string, visible func(*T) bool) (string, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if prefix == "" {
		return "", fmt.Errorf("the id must not be empty: %w", errs.Invalid)
	}
	if e := d.entries[prefix]; e != nil && e.value != nil {
		return prefix, nil
	}
	var found []string
	for id, e := range d.entries {
		if strings.HasPrefix(id, prefix) && e.value != nil && (visible == nil || visible(e.value)) {
			found = append(found, id)
		}
	}
	switch len(found) {
	case 0:
		return "", d.notFound(prefix)
	case 1:
		return found[0], nil
	}
	slices.Sort(found)
	if len(found) > maxCandidates {
		found = append(found[:maxCandidates], "...")
	}
	return "", fmt.Errorf("id %q is ambiguous, it could be %s: %w", prefix, strings.Join(found, ", "), errs.Invalid)
}

// maxCandidates is how many candidates the error of an ambiguous prefix names.
const maxCandidates = 5

// ByName returns the id and the record of a name. Of records that share it, it is the
// first that Options.Prior names.
func (d *Dir[T]) ByName(name string) (id string, value *T, ok bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	ids := d.names[name]
	if len(ids) == 0 {
		return "", nil, false
	}
	id = slices.MinFunc(ids, d.compare)
	return id, d.entries[id].value, true
}

// Shared returns the ids of records that share a name, those of each name in the order of
// Options.Prior.
func (d *Dir[T]) Shared() [][]string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var all [][]string
	for _, ids := range d.names {
		if len(ids) > 1 {
			all = append(all, slices.SortedFunc(slices.Values(ids), d.compare))
		}
	}
	slices.SortFunc(all, slices.Compare)
	return all
}

// compare orders two ids of one name. The caller holds the lock.
func (d *Dir[T]) compare(a, b string) int {
	order := 0
	if d.opts.Prior != nil {
		order = d.opts.Prior(d.entries[a].value, d.entries[b].value)
	}
	return cmp.Or(order, cmp.Compare(a, b))
}

// All returns every record, in no order.
func (d *Dir[T]) All() []*T {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.all()
}

// all is All for a caller that holds the lock.
func (d *Dir[T]) all() []*T {
	all := make([]*T, 0, len(d.entries))
	for _, e := range d.entries {
		if e.value != nil {
			all = append(all, e.value)
		}
	}
	return all
}

// InGroup returns the records of a group, in no order.
func (d *Dir[T]) InGroup(group string) []*T {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var all []*T
	for _, e := range d.groups[group] {
		all = append(all, e.value)
	}
	return all
}

// Since returns every record, in no order, and the version of the Dir, which changes with every
// record. fresh is false, and the records are nil, while the version is the one that the caller has
// seen. No version is 0.
func (d *Dir[T]) Since(seen uint64) (all []*T, version uint64, fresh bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if seen == d.version {
		return nil, seen, false
	}
	return d.all(), d.version, true
}

// IDs returns every id, in no order.
func (d *Dir[T]) IDs() []string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	ids := make([]string, 0, len(d.entries))
	for id, e := range d.entries {
		if e.value != nil {
			ids = append(ids, id)
		}
	}
	return ids
}

func (d *Dir[T]) notFound(id string) error {
	return fmt.Errorf("%s %q: %w", singular(filepath.Base(d.opts.Path)), id, errs.NotFound)
}

// singular is the singular of a directory's name, which is a plural.
func singular(things string) string {
	if one, ok := strings.CutSuffix(things, "xes"); ok {
		return one + "x"
	}
	return strings.TrimSuffix(things, "s")
}

func (d *Dir[T]) file(id string) string { return filepath.Join(d.opts.Path, id+suffix) }

func (d *Dir[T]) write(id string, value *T) error {
	data, err := json.Marshal(envelope[T]{Version: Version, ID: id, Record: value})
	if err != nil {
		return fmt.Errorf("cannot encode record %q: %w", id, err)
	}
	write := d.opts.Disk.Write
	if d.opts.Whole != nil && d.opts.Whole(value) {
		write = d.opts.Disk.WriteWhole
	}
	if err := write(d.file(id), data); err != nil {
		return fmt.Errorf("cannot write record %q: %w", id, err)
	}
	return nil
}

func (d *Dir[T]) publish(id string, e *entry[T], value *T) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.opts.Name != nil {
		name := d.opts.Name(value)
		if e.value != nil && d.opts.Name(e.value) != name {
			d.forgetName(d.opts.Name(e.value), id)
		}
		if e.value == nil || d.opts.Name(e.value) != name {
			d.addName(name, id)
		}
	}
	if e.value == nil {
		d.joinGroup(value, id, e)
	}
	e.value = value
	d.version++
}

// joinGroup and leaveGroup keep the groups. The caller holds the lock.
func (d *Dir[T]) joinGroup(value *T, id string, e *entry[T]) {
	if d.opts.Group == nil {
		return
	}
	group := d.opts.Group(value)
	if d.groups[group] == nil {
		d.groups[group] = map[string]*entry[T]{}
	}
	d.groups[group][id] = e
}

func (d *Dir[T]) leaveGroup(value *T, id string) {
	if d.opts.Group == nil {
		return
	}
	group := d.opts.Group(value)
	delete(d.groups[group], id)
	if len(d.groups[group]) == 0 {
		delete(d.groups, group)
	}
}

func (d *Dir[T]) addName(name, id string) { d.names[name] = append(d.names[name], id) }

// forgetName removes the name of a record; other records that share it keep it.
func (d *Dir[T]) forgetName(name, id string) {
	left := slices.DeleteFunc(d.names[name], func(other string) bool { return other == id })
	if len(left) == 0 {
		delete(d.names, name)
		return
	}
	d.names[name] = left
}

// Sync returns once all records of Options.Whole that were written would survive a loss of power.
func (d *Dir[T]) Sync() error {
	if err := d.opts.Disk.Sync(d.opts.Path); err != nil {
		return fmt.Errorf("cannot sync the directory of records %s: %w", d.opts.Path, err)
	}
	return nil
}
