package journal

import (
	"maps"
	"slices"

	"github.com/berthrun/berth/internal/provision"
)

// add makes a record part of the state.
func (s *state) add(rec record) {
	switch {
	case rec.Base != nil:
		s.owned = slices.Clone(rec.Base.Owned)
		s.pending = slices.Clone(rec.Base.Pending)
		s.made = slices.Clone(rec.Base.Made)
		s.base = slices.Clone(rec.Base.After)
		s.given = slices.Clone(rec.Base.Given)
	case rec.Begin != nil:
		s.made = append(s.made, rec.Begin.Made...)
		s.current = &Entry{
			Number: rec.Apply, Verb: rec.Begin.Verb, To: rec.Begin.To, Started: rec.Time,
			Version: rec.Begin.Version, NodeFile: rec.Begin.NodeFile,
		}
		s.entries = append(s.entries, s.current)
	case rec.End != nil:
		if e := s.entry(rec.Apply); e != nil {
			e.Ended, e.Result, e.Error = rec.Time, rec.End.Result, rec.End.Error
		}
	}
	if e := s.entry(rec.Apply); e != nil {
		if rec.Touch != nil {
			for _, p := range rec.Touch.Before {
				if !e.touched(p.Object) {
					e.Touched = append(e.Touched, p)
				}
			}
		}
		e.Restarted = append(e.Restarted, rec.Again...)
		for _, o := range rec.Own {
			if !e.touched(o.Object) && o.Since == e.Number {
				e.after = append(e.after, o.Prior)
			}
		}
		if rec.Done != nil {
			e.after = append(e.after, rec.Done.After...)
		}
		if e.Ended.IsZero() { // a reset also writes Leave, after the entry has ended
			e.left = append(e.left, objectsOf(rec.Leave)...)
		}
	}
	for _, o := range rec.Own {
		if i := s.find(o.Object); i >= 0 {
			s.owned[i] = o
		} else {
			s.owned = append(s.owned, o)
		}
	}
	for _, o := range rec.Leave {
		if i := s.find(o.Object); i >= 0 {
			s.owned = slices.Delete(s.owned, i, i+1)
		}
	}
	s.pending = append(s.pending, rec.Want...)
	s.pending = slices.DeleteFunc(s.pending, func(u string) bool { return slices.Contains(rec.Again, u) })
}

func objectsOf(owned []Owned) []provision.Object {
	list := make([]provision.Object, len(owned))
	for i, o := range owned {
		list[i] = o.Object
	}
	return list
}

func (s *state) entry(n int) *Entry {
	for _, e := range slices.Backward(s.entries) {
		if e.Number == n {
			return e
		}
	}
	return nil
}

func (s *state) find(object provision.Object) int {
	return slices.IndexFunc(s.owned, func(o Owned) bool { return o.Object == object })
}

func (e *Entry) touched(object provision.Object) bool { return e.prior(object) != nil }

// prior is what an object was before the entry; nil if the entry did not touch it.
func (e *Entry) prior(object provision.Object) *Prior {
	i := slices.IndexFunc(e.Touched, func(p Prior) bool { return p.Object == object })
	if i < 0 {
		return nil
	}
	return &e.Touched[i]
}

// records reports whether the entry says what it made of an object.
func (e *Entry) records(object provision.Object) bool {
	return slices.ContainsFunc(e.after, func(p Prior) bool { return p.Object == object })
}

// Owned lists our objects, in the order in which they became ours.
func (j *Journal) Owned() []Owned {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.state.owned)
}

// Owns reports whether an object is ours, and for which task.
func (j *Journal) Owns(object provision.Object) (task string, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if i := j.state.find(object); i >= 0 {
		return j.state.owned[i].Task, true
	}
	return "", false
}

// Pending lists units whose restart is due.
func (j *Journal) Pending() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.state.pending)
}

// History lists what was done, oldest first.
func (j *Journal) History() []Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	list := make([]Entry, len(j.state.entries))
	for i, e := range j.state.entries {
		list[i] = *e
	}
	return list
}

// Last returns the newest entry; ok is false when there is none.
func (j *Journal) Last() (entry Entry, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.state.entries) == 0 {
		return Entry{}, false
	}
	return *j.state.entries[len(j.state.entries)-1], true
}

// NodeFile is the digest of the node file that the state at the end of entry n came from;
// empty when the history does not know it any more.
func (j *Journal) NodeFile(n int) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range slices.Backward(j.state.entries) {
		switch {
		case e.Number > n || e.Number < n && e.Result != OK:
		case e.Verb == Apply:
			return e.NodeFile
		case e.Verb == Rollback: // the state is that of the entry that it went back to
			n = e.To
		default: // a prune takes away what the file before it does not want
			n = e.Number - 1
		}
	}
	return ""
}

// Interrupted is the number of the newest entry without a result, if no entry after it ended well: until then, the machine may
// be as it left it, since the undo of a later one returns to that. It is 0 if there is none.
func (j *Journal) Interrupted() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range slices.Backward(j.state.entries) {
		switch e.Result {
		case "":
			return e.Number
		case OK:
			return 0
		}
	}
	return 0
}

// Changed reports whether an entry gave an object the state now: it left the object so, and did not find it so. An entry that
// was interrupted may not say how it left the object. The next one that ends well says it then. Before that, the interrupted one
// counts as what changed the object.
func (j *Journal) Changed(o provision.Object, now provision.State) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.state.changed(o, now)
}

func (s *state) changed(o provision.Object, now provision.State) bool {
	is := func(p Prior) bool {
		return p.Object == o && p.State.Exists == now.Exists && p.State.Digest == now.Digest && maps.Equal(p.State.Attrs, now.Attrs)
	}
	if slices.ContainsFunc(s.given, is) {
		return true
	}
	// Entries that did not end well, and the next one, which continues them, count as one.
	var found *Prior
	recorded := false
	for _, e := range s.entries {
		if e.Result == RolledBack {
			continue
		}
		if found == nil {
			found = e.prior(o)
		}
		recorded = recorded || e.records(o)
		if found != nil && !is(*found) && slices.ContainsFunc(e.after, is) {
			return true
		}
		if e.Result == OK {
			found, recorded = nil, false
		}
	}
	return found != nil && !recorded && !is(*found)
}

// Unrecorded lists those of objects that an earlier entry touched which did not end well, if no entry since says what they
// became.
func (j *Journal) Unrecorded(objects []provision.Object) []provision.Object {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(objects), func(o provision.Object) bool {
		touched := false
		for _, e := range j.state.entries {
			switch {
			case e.Result == RolledBack:
			case e.records(o), e.Result == OK:
				touched = false
			case e != j.state.current && e.touched(o):
				touched = true
			}
		}
		return !touched
	})
}

// Touched lists what entry n touched so far.
func (j *Journal) Touched(n int) []Prior {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e := j.state.entry(n); e != nil {
		return slices.Clone(e.Touched)
	}
	return nil
}

// Since lists each object touched after entry n with its state at the end of n, in
// the order in which they were first touched; and what became ours since (fresh) or
// ceased to be (gone).
func (j *Journal) Since(n int) (priors []Prior, fresh, gone []Owned) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.state.entries {
		if e.Number <= n {
			continue
		}
		for _, p := range e.Touched {
			if !slices.ContainsFunc(priors, func(q Prior) bool { return q.Object == p.Object }) {
				priors = append(priors, p)
			}
		}
	}
	for _, o := range j.state.owned {
		if o.Since <= n {
			continue
		}
		fresh = append(fresh, o)
		// Something may have changed the object between the entry that it became ours in and the
		// one that touched it first, such as another task's package.
		if i := slices.IndexFunc(priors, func(p Prior) bool { return p.Object == o.Object }); i >= 0 {
			priors[i].State = o.State
		}
	}
	for _, rec := range j.records {
		if rec.Apply <= n {
			continue
		}
		for _, o := range rec.Leave {
			if o.Since <= n && j.state.find(o.Object) < 0 {
				gone = append(gone, o)
			}
		}
	}
	return priors, fresh, gone
}

// At replaces states of priors by those that the objects had at the end of entry n, where berth
// made them so: a state that somebody made by hand since is not one to return to.
func (j *Journal) At(n int, priors []Prior) []Prior {
	j.mu.Lock()
	defer j.mu.Unlock()
	known := j.state.after(n)
	list := make([]Prior, len(priors))
	for i, p := range priors {
		if state, ok := known[p.Object]; ok {
			p.State = state
		}
		list[i] = p
	}
	return list
}

// after is what objects were at the end of entry n, as far as they were ours then: one that was not may have become somebody's.
func (s *state) after(n int) map[provision.Object]provision.State {
	known := map[provision.Object]provision.State{}
	for _, p := range s.base {
		known[p.Object] = p.State
	}
	for _, e := range s.entries {
		if e.Number > n || e.Result == RolledBack || e.Result == Failed {
			continue
		}
		for _, p := range e.after {
			known[p.Object] = p.State
		}
		for _, o := range e.left {
			delete(known, o)
		}
	}
	return known
}
