package tasks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// File is a regular file with a given content. The task creates missing parents (0755, root) and
// owns them, so that they are removed with the file.
type File struct {
	M provision.Meta
	// Path is absolute and clean.
	Path    string
	Content string
	// Mode is 0644 when zero.
	Mode fs.FileMode
	// Owner and Group are names or numbers; root when empty. A name that is a User or
	// Group task of the target needs that task.
	Owner, Group string
	// Once writes the file only if it does not exist; its content belongs to the user then.
	Once bool
	// Secret keeps content out of plans, diffs and reports.
	Secret bool
	// Absent: the file must not exist. Content and modes are unused then.
	Absent bool
}

// ID is "file PATH".
func (f File) ID() string { return "file " + f.Path }

// Meta returns M.
func (f File) Meta() provision.Meta { return f.M }

// Objects is the file.
func (f File) Objects(context.Context, provision.Host) ([]provision.Object, error) {
	return []provision.Object{{Kind: kindFile, Name: f.Path}}, checkPath(f.Path)
}

// Check compares content, mode and owner.
func (f File) Check(_ context.Context, host provision.Host) (provision.Change, error) {
	info, err := host.Files().Stat(f.Path)
	gone := errors.Is(err, errs.NotFound)
	if err != nil && !gone {
		return provision.Change{}, err
	}
	switch {
	case f.Absent && gone, f.Once && !gone:
		return provision.Change{}, nil
	case !gone && info.Type.IsDir():
		return provision.Change{}, fmt.Errorf("%s is a directory, which a file does not replace: %w", f.Path, errs.State)
	case f.Absent:
		return change(provision.Diff{
			Object: provision.Object{Kind: kindFile, Name: f.Path},
			Action: provision.Delete, Reason: "is there",
		}), nil
	}
	d, err := f.desired().check(host)
	return change(d), err
}

// Apply writes the file, or removes it if it should be absent.
func (f File) Apply(_ context.Context, host provision.Host) error {
	if f.Absent {
		return host.Files().Remove(f.Path)
	}
	if f.Once {
		if _, err := host.Files().Stat(f.Path); !errors.Is(err, errs.NotFound) {
			return err
		}
	}
	return f.desired().write(host)
}

func (f File) desired() desiredFile {
	return desiredFile{
		path: f.Path, content: f.Content, mode: cmp.Or(f.Mode, defaultFileMode),
		owner: f.Owner, group: f.Group, secret: f.Secret,
	}
}
