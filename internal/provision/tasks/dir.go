package tasks

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// Dir is a directory, without its content. It is removed only if empty.
type Dir struct {
	M    provision.Meta
	Path string
	// Mode is 0755 when zero.
	Mode         fs.FileMode
	Owner, Group string
}

// ID is "dir PATH".
func (d Dir) ID() string { return "dir " + d.Path }

// Meta returns M.
func (d Dir) Meta() provision.Meta { return d.M }

// Objects is the directory.
func (d Dir) Objects(context.Context, provision.Host) ([]provision.Object, error) {
	return []provision.Object{d.object()}, checkPath(d.Path)
}

func (d Dir) object() provision.Object { return provision.Object{Kind: kindDir, Name: d.Path} }

// Check compares mode and owner.
func (d Dir) Check(ctx context.Context, host provision.Host) (provision.Change, error) {
	now, err := dirKind{}.Read(ctx, host, d.Path)
	if err != nil {
		return provision.Change{}, err
	}
	if now.Exists && now.Attrs[attrType] != "dir" {
		return provision.Change{}, fmt.Errorf("%s is a %s, which a directory does not replace: %w", d.Path, now.Attrs[attrType], errs.State)
	}
	want := map[string]string{attrMode: octal(d.mode())}
	if want[attrUID], want[attrGID], err = ownerNow(host, d.Owner, d.Group); err != nil {
		return provision.Change{}, err
	}
	diff := provision.Diff{Object: d.object(), Fields: fields(now.Attrs, want, attrMode, attrUID, attrGID)}
	switch {
	case !now.Exists:
		diff.Action, diff.Reason = provision.Create, "is not there"
	case len(diff.Fields) > 0:
		diff.Action, diff.Reason = provision.Modify, "mode or owner differs"
	}
	return change(diff), nil
}

// Apply makes the directory.
func (d Dir) Apply(_ context.Context, host provision.Host) error {
	uid, gid, err := ownerIDs(host, d.Owner, d.Group)
	if err != nil {
		return err
	}
	if err := makeParents(host, d.Path); err != nil {
		return err
	}
	attr := provision.Attr{Mode: d.mode(), UID: uid, GID: gid}
	if err := host.Files().Mkdir(d.Path, attr); err != nil {
		return err
	}
	return host.Files().SetAttr(d.Path, attr)
}

func (d Dir) mode() fs.FileMode { return cmp.Or(d.Mode, defaultDirMode) }

// Held owns an object that somebody else creates: a program's directory in which others put files,
// or the running binary. The task changes nothing. A restore treats the object as any other.
type Held struct {
	M      provision.Meta
	Object provision.Object
}

// ID is "held KIND NAME".
func (h Held) ID() string { return "held " + h.Object.String() }

// Meta returns M.
func (h Held) Meta() provision.Meta { return h.M }

// Objects is the object.
func (h Held) Objects(context.Context, provision.Host) ([]provision.Object, error) {
	return []provision.Object{h.Object}, nil
}

// Check has nothing to compare.
func (h Held) Check(context.Context, provision.Host) (provision.Change, error) {
	return provision.Change{}, nil
}

// Apply has nothing to do.
func (h Held) Apply(context.Context, provision.Host) error { return nil }

// Data is a tree, or a file, that a program creates by itself: images and records of a runtime. The
// task changes nothing. It records whether anything existed, so that a restore removes what came
// since, and keeps what existed before.
type Data struct {
	M    provision.Meta
	Path string
}

// ID is "data PATH".
func (d Data) ID() string { return "data " + d.Path }

// Meta returns M.
func (d Data) Meta() provision.Meta { return d.M }

// Objects is the tree.
func (d Data) Objects(context.Context, provision.Host) ([]provision.Object, error) {
	return []provision.Object{{Kind: kindData, Name: d.Path}}, checkPath(d.Path)
}

// Check has nothing to compare.
func (d Data) Check(context.Context, provision.Host) (provision.Change, error) {
	return provision.Change{}, nil
}

// Apply has nothing to do.
func (d Data) Apply(context.Context, provision.Host) error { return nil }

// nodeDir is provisioning's own state directory; it does not count as data.
const nodeDir = "/var/lib/berth/node"

// dataKind is such a tree: it exists when anything but nodeDir lies in it.
type dataKind struct{}

// Read reports whether anything is there.
func (dataKind) Read(_ context.Context, host provision.Host, name string) (provision.State, error) {
	entries, err := dataEntries(host, name)
	return provision.State{Exists: len(entries) > 0}, err
}

// dataEntries lists what is in a tree; a file is its own and only entry.
func dataEntries(host provision.Host, name string) ([]string, error) {
	info, err := host.Files().Stat(name)
	if err != nil {
		return nil, errs.IgnoreNotFound(err)
	}
	if !info.Type.IsDir() {
		return []string{""}, nil
	}
	names, err := host.Files().ReadDir(name)
	if err != nil {
		return nil, errs.IgnoreNotFound(err)
	}
	return slices.DeleteFunc(names, func(entry string) bool { return path.Join(name, entry) == nodeDir }), nil
}

// Restore removes what came since. A tree in which something is mounted is in use, and stays, and so does one that podman uses.
// Restore removes the tree's own bind mount with it.
func (dataKind) Restore(ctx context.Context, host provision.Host, name string, state provision.State, _ provision.Content) error {
	entries, err := dataEntries(host, name)
	if err != nil || state.Exists {
		return err
	}
	for _, at := range podmans(name) {
		if provision.Exists(host.Files(), at) {
			return fmt.Errorf("%s stays: podman keeps its own there, too (%s): %w", name, at, errs.State)
		}
	}
	bound, kept, err := dataMounts(host, name)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := host.Files().RemoveAll(path.Join(name, entry)); err != nil {
			return err
		}
	}
	for range bound {
		if err := host.Kernel().Unmount(ctx, name); err != nil {
			return err
		}
	}
	left, err := host.Files().ReadDir(name)
	if err != nil || kept || len(left) > 0 {
		return errs.IgnoreNotFound(err)
	}
	return host.Files().Remove(name)
}

// podmans lists the records, in either of their forms, that podman writes at each start, and CRI-O does not, in a directory of
// images that the two share, or below it. A directory "volumes" does not count: docker has one, too.
func podmans(name string) []string {
	var list []string
	for _, dir := range []string{name, path.Join(name, "storage")} {
		list = append(list, dir+"/libpod", dir+"/db.sql")
	}
	return list
}

// dataMounts counts how often a tree is bound on itself, and reports whether something else is
// mounted on it: a disk of its own, which is not ours. A mount within the tree is an error.
func dataMounts(host provision.Host, name string) (bound int, kept bool, err error) {
	if !host.Live() {
		return 0, false, nil
	}
	mounts, err := host.Kernel().Mounts()
	if err != nil {
		return 0, false, err
	}
	for _, m := range mounts {
		switch {
		case strings.HasPrefix(m.Path, name+"/"):
			return 0, false, fmt.Errorf("%s is in use: %s is mounted: %w", name, m.Path, errs.State)
		case m.Path != name:
		case m.Self:
			bound++
		default:
			kept = true
		}
	}
	return bound, kept, nil
}
