package tasks

import (
	"context"
	"fmt"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// Link is a symbolic link.
type Link struct {
	M    provision.Meta
	Path string
	// Target as it stands in the link.
	Target string
}

// ID is "link PATH".
func (l Link) ID() string { return "link " + l.Path }

// Meta returns M.
func (l Link) Meta() provision.Meta { return l.M }

// Objects is the link.
func (l Link) Objects(context.Context, provision.Host) ([]provision.Object, error) {
	if l.Target == "" || strings.ContainsAny(l.Target, "\n\x00") {
		return nil, fmt.Errorf("target %q of link %s: %w", l.Target, l.Path, errs.Invalid)
	}
	return []provision.Object{l.object()}, checkPath(l.Path)
}

func (l Link) object() provision.Object { return provision.Object{Kind: kindFile, Name: l.Path} }

// Check compares the target.
func (l Link) Check(_ context.Context, host provision.Host) (provision.Change, error) {
	now, err := readPath(host, l.Path)
	if err != nil {
		return provision.Change{}, err
	}
	diff := provision.Diff{Object: l.object(), Action: provision.Modify}
	switch {
	case !now.Exists:
		diff.Action, diff.Reason = provision.Create, "is not there"
	case now.Attrs[attrType] == "dir":
		return provision.Change{}, fmt.Errorf("%s is a directory, which a link does not replace: %w", l.Path, errs.State)
	case now.Attrs[attrType] != "link":
		diff.Reason = "is a " + now.Attrs[attrType]
	case now.Attrs[attrTarget] != l.Target:
		diff.Reason = "points elsewhere"
	default:
		return provision.Change{}, nil
	}
	diff.Fields = fields(now.Attrs, map[string]string{attrType: "link", attrTarget: l.Target}, attrType, attrTarget)
	return change(diff), nil
}

// Apply makes the link.
func (l Link) Apply(_ context.Context, host provision.Host) error {
	if err := makeParents(host, l.Path); err != nil {
		return err
	}
	return host.Files().Link(l.Target, l.Path, provision.Attr{})
}
