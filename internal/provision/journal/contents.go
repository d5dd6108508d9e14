package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

func (j *Journal) contentPath(d string) string {
	return j.dir + "/contents/" + strings.ReplaceAll(d, ":", "-")
}

// Keep stores what open returns, which must have digest d. A content that is there is
// not read again. Tasks that run at the same time may keep the same content: the second waits
// for the first.
func (j *Journal) Keep(d string, open provision.Content) error {
	unlock, err := j.keeping.Lock(context.Background(), d)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := j.files.Stat(j.contentPath(d)); !errors.Is(err, errs.NotFound) {
		return err
	}
	if err := j.files.Mkdir(j.dir+"/contents", provision.Attr{Mode: 0o700}); err != nil {
		return fmt.Errorf("cannot keep content: %w", err)
	}
	r, err := open()
	if err != nil {
		return fmt.Errorf("cannot keep content: %w", err)
	}
	defer r.Close()
	digester := digest.SHA256.Digester()
	if err := j.files.Write(j.contentPath(d), io.TeeReader(r, digester.Hash()), provision.Attr{Mode: 0o600}); err != nil {
		return fmt.Errorf("cannot keep content: %w", err)
	}
	if got := digester.Digest().String(); got != d {
		return errors.Join(
			fmt.Errorf("content changed while it was read (%s, then %s): %w", d, got, errs.Unavailable),
			j.files.Remove(j.contentPath(d)))
	}
	return nil
}

func (j *Journal) keepBytes(data []byte) (string, error) {
	d := digest.FromBytes(data).String()
	return d, j.Keep(d, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
}

// Size is that of a content that was kept.
func (j *Journal) Size(d string) (int64, error) {
	info, err := j.files.Stat(j.contentPath(d))
	return info.Size, err
}

// Content opens a content that was kept.
func (j *Journal) Content(d string) (io.ReadCloser, error) {
	r, err := j.files.Open(j.contentPath(d))
	if err != nil {
		return nil, fmt.Errorf("cannot open content %s of the journal: %w", d, err)
	}
	return r, nil
}

// shorten rewrites the journal without its oldest entries, and removes contents that no record
// names any more. A crash leaves the old or the new journal. Callers hold mu.
func (j *Journal) shorten() error {
	if len(j.state.entries) <= keep {
		return nil
	}
	first := j.state.entries[len(j.state.entries)-keep].Number
	var old state
	var rest []record
	for _, rec := range j.records {
		if rec.Apply < first {
			old.add(rec)
		} else {
			rest = append(rest, rec)
		}
	}
	records := append([]record{{Time: j.now().UTC(), Base: &base{Owned: old.owned, Pending: old.pending, Made: old.made, After: old.last(), Given: old.givenVersions()}}}, rest...)
	var data bytes.Buffer
	for _, rec := range records {
		line, err := json.Marshal(rec)
		if err != nil {
			return fmt.Errorf("cannot shorten the journal: %w", err)
		}
		data.Write(line)
		data.WriteByte('\n')
	}
	if err := j.files.Write(j.file(), &data, provision.Attr{Mode: 0o600}); err != nil {
		return fmt.Errorf("cannot shorten the journal: %w", err)
	}
	j.records = records
	j.state = state{}
	for _, rec := range records {
		j.state.add(rec)
	}
	return j.sweep()
}

// last has the states of our objects at the end of the newest entry.
func (s *state) last() []Prior {
	if len(s.entries) == 0 {
		return s.base
	}
	known := s.after(s.entries[len(s.entries)-1].Number)
	var list []Prior
	for _, o := range s.owned {
		if state, ok := known[o.Object]; ok {
			list = append(list, Prior{Object: o.Object, State: state})
		}
	}
	return list
}

// givenVersions lists our packages that have a version which one of the entries gave them.
func (s *state) givenVersions() []Prior {
	return slices.DeleteFunc(s.last(), func(p Prior) bool { return p.Object.Kind != provision.KindPackage || !s.changed(p.Object, p.State) })
}

// sweep removes contents that no record names.
func (j *Journal) sweep() error {
	named := map[string]bool{}
	add := func(d string) { named[strings.ReplaceAll(d, ":", "-")] = true }
	addAll := func(priors []Prior) {
		for _, p := range priors {
			add(p.State.Digest)
		}
	}
	for _, o := range j.state.owned {
		add(o.State.Digest)
	}
	for _, rec := range j.records {
		if rec.Begin != nil {
			add(rec.Begin.NodeFile)
		}
		if rec.Touch != nil {
			addAll(rec.Touch.Before)
		}
		if rec.Done != nil {
			addAll(rec.Done.After)
		}
		if rec.Base != nil {
			addAll(rec.Base.After)
		}
		for _, o := range rec.Leave {
			add(o.State.Digest)
		}
	}
	names, err := j.files.ReadDir(j.dir + "/contents")
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	for _, name := range names {
		if named[name] {
			continue
		}
		if err := j.files.Remove(j.dir + "/contents/" + name); err != nil {
			return fmt.Errorf("cannot remove an old content: %w", err)
		}
	}
	return nil
}
