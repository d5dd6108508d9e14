package cgroup

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// Paths maps controller to a cgroup's directory; on v2 the only key is "", on a
// hybrid host "" is the v2 hierarchy beside the controllers' own.
type Paths map[string]string

// Check refuses paths that could belong to another container: each must be absolute and
// clean, and end in a name that contains id. Kind Invalid.
func (p Paths) Check(id string) error {
	if len(p) == 0 {
		return fmt.Errorf("no cgroup paths: %w", errs.Invalid)
	}
	for controller, dir := range p {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || id == "" || !strings.Contains(filepath.Base(dir), id) {
			return fmt.Errorf("cgroup path %q of controller %q does not end in the id %q: %w", dir, controller, id, errs.Invalid)
		}
	}
	return nil
}

// named returns the cgroups of the paths whose names contain id: each path up to the first such
// name, since a container that manages its own cgroups may have its processes further below. It
// leaves out paths without such a name, and returns none for an id of "".
func (p Paths) named(id string) Paths {
	named := Paths{}
	for controller, dir := range p {
		if at := strings.Index(dir, id); id != "" && at >= 0 {
			length := strings.IndexByte(dir[at:], filepath.Separator)
			if length < 0 {
				length = len(dir) - at
			}
			named[controller] = dir[:at+length]
		}
	}
	return named
}

// Sub returns the paths of the cgroup name below this one, for those of the controllers
// that are there.
func (p Paths) Sub(name string, controllers ...string) Paths {
	sub := make(Paths)
	for _, c := range controllers {
		if dir, ok := p[c]; ok {
			sub[c] = filepath.Join(dir, name)
		}
	}
	return sub
}

// Name returns the last part of the cgroup's path, "" for no cgroup. It is the same in each
// hierarchy.
func (p Paths) Name() string {
	if dirs := p.dirs(); len(dirs) > 0 {
		return filepath.Base(dirs[0])
	}
	return ""
}

// Exist reports whether the cgroup is there, in one hierarchy at least.
func (p Paths) Exist() bool {
	return slices.ContainsFunc(p.dirs(), func(dir string) bool {
		_, err := os.Stat(dir)
		return err == nil
	})
}

// unified reports whether the cgroup is of a unified hierarchy (v2 alone).
func (p Paths) unified() bool {
	_, ok := p[""]
	return ok && len(p) == 1
}

// dirs returns each directory once: controllers may be mounted together.
func (p Paths) dirs() []string {
	return slices.Compact(slices.Sorted(maps.Values(p)))
}

// SlicePath returns the cgroup of a systemd slice: "a-b.slice" is below "a.slice".
func SlicePath(slice string) (string, error) {
	name, ok := strings.CutSuffix(slice, ".slice")
	if !ok || strings.Contains(name, "/") || name == "" {
		return "", fmt.Errorf("%q is no slice: %w", slice, errs.Invalid)
	}
	if name == "-" {
		return "/", nil
	}
	path, prefix := "/", ""
	for part := range strings.SplitSeq(name, "-") {
		if part == "" {
			return "", fmt.Errorf("%q is no slice: %w", slice, errs.Invalid)
		}
		path = filepath.Join(path, prefix+part+".slice")
		prefix += part + "-"
	}
	return path, nil
}
