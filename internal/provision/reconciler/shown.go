package reconciler

import (
	"maps"
	"slices"
	"strconv"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/journal"
)

// Shown is the plan as it may be printed. Fingerprints stand for contents that not everybody may
// read.
func (rc *Reconciler) Shown(plan *Plan) (*Plan, error) {
	shown := *plan
	shown.Unwanted = slices.Clone(plan.Unwanted)
	for i := range shown.Unwanted {
		var err error
		if shown.Unwanted[i].Prior, err = rc.sealPrior(shown.Unwanted[i].Prior); err != nil {
			return nil, err
		}
	}
	return &shown, nil
}

// ShownEntry is an entry of the history as it may be printed.
func (rc *Reconciler) ShownEntry(entry journal.Entry) (journal.Entry, error) {
	if entry.NodeFile != "" { // the node file, with contents of files in it
		entry.NodeFile = rc.Host.Fingerprint(entry.NodeFile)
	}
	entry.Touched = slices.Clone(entry.Touched)
	for i := range entry.Touched {
		var err error
		if entry.Touched[i], err = rc.sealPrior(entry.Touched[i]); err != nil {
			return entry, err
		}
	}
	return entry, nil
}

func (rc *Reconciler) sealPrior(p journal.Prior) (journal.Prior, error) {
	hidden, err := rc.hidden(p.Object, p.State)
	if err != nil {
		return p, err
	}
	if p.State.Digest != "" && hidden {
		p.State.Digest = rc.sealed(p.State.Digest)
	}
	if value, ok := p.State.Attrs[provision.AttrValue]; ok {
		p.State.Attrs = maps.Clone(p.State.Attrs)
		p.State.Attrs[provision.AttrValue] = rc.sealValue(p.Object, value, hidden)
	}
	return p, nil
}

// seal removes from a difference what not everybody may read.
func (rc *Reconciler) seal(d provision.Diff, now, then provision.State) (provision.Diff, error) {
	hidden, err := rc.hidden(d.Object, now, then)
	if err != nil {
		return d, err
	}
	for i, f := range d.Fields {
		switch {
		case f.Name == "content" && hidden:
			d.Fields[i].From, d.Fields[i].To = rc.sealed(f.From), rc.sealed(f.To)
		case f.Name == provision.AttrValue:
			d.Fields[i].From, d.Fields[i].To = rc.sealValue(d.Object, f.From, hidden), rc.sealValue(d.Object, f.To, hidden)
		}
	}
	return d, nil
}

// hidden reports whether not everybody may read an object's content: in one of its states, or at
// its present path.
func (rc *Reconciler) hidden(o provision.Object, states ...provision.State) (bool, error) {
	for _, state := range states {
		mode, err := strconv.ParseUint(state.Attrs["mode"], 8, 32)
		if err == nil && mode&0o004 == 0 {
			return true, nil
		}
	}
	placed, ok := rc.Kinds[o.Kind].(provision.Placed)
	if !ok {
		return false, nil
	}
	return provision.Hidden(rc.Host.Files(), placed.Path(o.Name))
}

// sealed shows a content by its fingerprint, with its size where the journal has it.
func (rc *Reconciler) sealed(digest string) string {
	if digest == "" {
		return ""
	}
	size, err := rc.journal.Size(digest)
	if err != nil { // it was not kept
		return rc.Host.Fingerprint(digest)
	}
	return provision.Sealed(rc.Host, size, digest)
}

func (rc *Reconciler) sealValue(o provision.Object, value string, hidden bool) string {
	if o.Kind != provision.KindJSONKey || value == "" {
		return value
	}
	return provision.SealedValue(rc.Host, o.Name, value, hidden)
}
