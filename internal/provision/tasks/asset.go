package tasks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// Asset installs files from a fetched asset.
type Asset struct {
	M   provision.Meta
	Ref provision.AssetRef
	// Pick says which files go where. A file picked twice, or two files for one path,
	// is an error.
	Pick []Pick
}

// Pick is one kind of file of an asset.
type Pick struct {
	// What is for messages: "runc", "binaries of containerd".
	What string
	// Layouts are tried in order; only the first with a match counts. Each is a list of patterns as
	// path.Match has them ("bin/*", "usr/local/bin/containerd*").
	Layouts [][]string
	// Except lists patterns on base names that are left out.
	Except []string
	// Dir is where the matches go, under their base names.
	Dir string
	// As is the base name of a single match; empty keeps it.
	As string
	// Mode is 0755 when zero. Owner is root.
	Mode fs.FileMode
	// Min and Max bound the number of matches; Max 0 is no bound. Exactly one runc is 1, 1. Outside
	// the bounds the error lists the candidates.
	Min, Max int
}

// ID is "asset NAME".
func (a Asset) ID() string { return "asset " + a.Ref.Name }

// Meta returns M.
func (a Asset) Meta() provision.Meta { return a.M }

// Deadline allows for a slow server.
func (Asset) Deadline() time.Duration { return 30 * time.Minute }

// placed is one file of an asset and where it goes.
type placed struct {
	member provision.Member
	path   string
	mode   fs.FileMode
}

// Objects are the files, known when the asset has been fetched once.
func (a Asset) Objects(_ context.Context, host provision.Host) ([]provision.Object, error) {
	files, err := a.known(host)
	if err != nil {
		return nil, errs.IgnoreNotFound(err)
	}
	list := make([]provision.Object, len(files))
	for i, f := range files {
		list[i] = provision.Object{Kind: kindFile, Name: f.path}
	}
	return list, nil
}

// Prepare fetches the asset, unless all of its files are in place.
func (a Asset) Prepare(ctx context.Context, host provision.Host) error {
	if c, err := a.Check(ctx, host); err != nil || c.Empty() {
		return err
	}
	members, err := host.Assets().Fetch(ctx, a.Ref)
	if err != nil {
		return err
	}
	_, err = a.pick(members)
	return err
}

// Check compares the files. For an asset that was never fetched it reports only the fetch.
func (a Asset) Check(_ context.Context, host provision.Host) (provision.Change, error) {
	files, err := a.known(host)
	if errors.Is(err, errs.NotFound) {
		return change(provision.Diff{
			Object: provision.Object{Kind: "asset", Name: a.Ref.Name}, Action: provision.Fetch, Reason: "was not fetched yet",
			Fields: []provision.Field{{Name: "source", To: a.Ref.Shown()}, {Name: "digest", To: a.Ref.Digest}},
		}), nil
	}
	if err != nil {
		return provision.Change{}, err
	}
	var diffs []provision.Diff
	for _, f := range files {
		d, err := f.check(host)
		if err != nil {
			return provision.Change{}, err
		}
		diffs = append(diffs, d)
	}
	return change(diffs...), nil
}

// Apply installs the files that differ.
func (a Asset) Apply(ctx context.Context, host provision.Host) error {
	members, err := host.Assets().Fetch(ctx, a.Ref)
	if err != nil {
		return err
	}
	files, err := a.pick(members)
	if err != nil {
		return err
	}
	due := map[string]placed{}
	var names []string
	for _, f := range files {
		d, err := f.check(host)
		if err != nil {
			return err
		}
		if d.Action != "" {
			due[f.member.Path] = f
			names = append(names, f.member.Path)
		}
	}
	return host.Assets().Read(ctx, a.Ref, names, func(member string, content io.Reader) error {
		f := due[member]
		if err := makeParents(host, f.path); err != nil {
			return err
		}
		if err := host.Files().Write(f.path, content, provision.Attr{Mode: f.mode}); err != nil {
			return fmt.Errorf("cannot install %s of %s: %w", member, a.Ref.Name, err)
		}
		return nil
	})
}

func (a Asset) known(host provision.Host) ([]placed, error) {
	members, err := host.Assets().Members(a.Ref)
	if err != nil {
		return nil, err
	}
	return a.pick(members)
}

func (f placed) check(host provision.Host) (provision.Diff, error) {
	now, err := readPath(host, f.path)
	if err != nil {
		return provision.Diff{}, err
	}
	want := map[string]string{attrType: "file", attrMode: octal(f.mode), attrUID: "0", attrGID: "0"}
	d := provision.Diff{
		Object: provision.Object{Kind: kindFile, Name: f.path}, Action: provision.Modify,
		Fields: fields(now.Attrs, want, attrType, attrMode, attrUID, attrGID),
	}
	switch {
	case !now.Exists:
		d.Action, d.Reason = provision.Create, "is not there"
	case now.Attrs[attrType] == "dir":
		return d, fmt.Errorf("%s is a directory, which a file does not replace: %w", f.path, errs.State)
	case now.Digest != f.member.Digest:
		d.Reason = "content differs"
		content := provision.Field{Name: "content", From: now.Digest, To: f.member.Digest}
		hidden, err := provision.Hidden(host.Files(), f.path)
		if err == nil && (hidden || !provision.Readable(f.mode)) {
			content.To = provision.Sealed(host, f.member.Size, f.member.Digest)
			content.From, err = sealed(host, f.path, now)
		}
		if err != nil {
			return d, err
		}
		d.Fields = append(d.Fields, content)
	case len(d.Fields) > 0:
		d.Reason = "mode or owner differs"
	default:
		return provision.Diff{}, nil
	}
	return d, nil
}

// pick chooses the members to install.
func (a Asset) pick(members []provision.Member) ([]placed, error) {
	var list []placed
	taken := map[string]string{} // by target, and by member
	for _, p := range a.Pick {
		matches, err := p.match(members)
		if err != nil {
			return nil, err
		}
		if len(matches) < p.Min || p.Max > 0 && len(matches) > p.Max || p.As != "" && len(matches) > 1 {
			return nil, p.countError(a.Ref, matches, members)
		}
		for _, m := range matches {
			f := placed{member: m, path: path.Join(p.Dir, cmp.Or(p.As, path.Base(m.Path))), mode: cmp.Or(p.Mode, 0o755)}
			if other, ok := taken[f.path]; ok {
				return nil, fmt.Errorf("cannot install %s of asset %s to %s: %s goes there: %w", m.Path, a.Ref.Name, f.path, other, errs.Invalid)
			}
			if other, ok := taken["\x00"+m.Path]; ok {
				return nil, fmt.Errorf("%s of asset %s is wanted twice, in %s and %s: %w", m.Path, a.Ref.Name, other, f.path, errs.Invalid)
			}
			taken[f.path], taken["\x00"+m.Path] = m.Path, f.path
			list = append(list, f)
		}
	}
	return list, nil
}

// match returns the regular files that the first layout with any match names.
func (p Pick) match(members []provision.Member) ([]provision.Member, error) {
	for _, layout := range p.Layouts {
		var matches []provision.Member
		for _, m := range members {
			ok, err := matchAny(layout, m.Path)
			if err != nil {
				return nil, err
			}
			except, err := matchAny(p.Except, path.Base(m.Path))
			if err != nil {
				return nil, err
			}
			if ok && !except {
				matches = append(matches, m)
			}
		}
		if len(matches) > 0 {
			return matches, nil
		}
	}
	return nil, nil
}

func matchAny(patterns []string, name string) (bool, error) {
	for _, pattern := range patterns {
		ok, err := path.Match(pattern, name)
		if err != nil {
			return false, fmt.Errorf("pattern %q: %w: %w", pattern, errs.Invalid, err)
		}
		if ok {
			return true, nil
		}
	}
	return false, nil
}

// countError names the patterns, and the candidates of the asset.
func (p Pick) countError(ref provision.AssetRef, matches, members []provision.Member) error {
	want := fmt.Sprintf("at least %d", p.Min)
	if p.Max == p.Min || p.As != "" {
		want = fmt.Sprintf("exactly %d", max(p.Min, 1))
	} else if p.Max > 0 {
		want = fmt.Sprintf("%d to %d", p.Min, p.Max)
	}
	var patterns []string
	for _, layout := range p.Layouts {
		patterns = append(patterns, strings.Join(layout, " "))
	}
	candidates := matches
	if len(candidates) == 0 {
		candidates = members
	}
	var names []string
	for _, m := range candidates[:min(len(candidates), 20)] {
		names = append(names, m.Path)
	}
	if len(candidates) > len(names) {
		names = append(names, fmt.Sprintf("and %d more", len(candidates)-len(names)))
	}
	return fmt.Errorf("asset %s has %d files for %s, not %s (looked for %s); candidates: %s: %w",
		ref.Name, len(matches), p.What, want, strings.Join(patterns, ", then "), strings.Join(names, ", "), errs.Invalid)
}
