package order

import (
	"github.com/berthrun/berth/internal/supervisor/ownstart/failure"
)

// Source is a tree of mounts of the host that the container gets a clone of.
type Source struct {
	// Path is where it is on the host.
	Path string
	// Recursive is true for the mounts below it, too.
	Recursive bool
	// MapIDs and MapAll are as in Mount.
	MapIDs string
	MapAll bool
	// Mount and Device are the places in the lists of what it is for, -1 for none. The root has neither.
	Mount, Device int
}

// Sources are the trees that the container gets: the root, those of the bind mounts, and those of the
// devices where BindDevices says so, in the order of their lists.
func (c *Create) Sources() []Source {
	all := []Source{{Path: c.Root.Path, Recursive: true, Mount: -1, Device: -1}}
	for i := range c.Mounts {
		if m := &c.Mounts[i]; m.Bind {
			all = append(all, Source{m.Source, m.Recursive, m.MapIDs, m.MapAll, i, -1})
		}
	}
	if c.BindDevices && c.Dev {
		for i := range c.Devices {
			all = append(all, Source{Path: c.Devices[i].Path, Mount: -1, Device: i})
		}
	}
	return all
}

// SourceFailure is the failure of a source that could not be cloned.
func (c *Create) SourceFailure(s *Source, err error) *failure.Failure {
	switch {
	case s.Mount >= 0:
		m := &c.Mounts[s.Mount]
		return failure.New(failure.OfMount, m.Target, "cannot mount %q to %q: open the source: %w", m.Source, m.Target, err)
	case s.Device >= 0:
		path := c.Devices[s.Device].Path
		return failure.New(failure.OfDevice, path, "cannot mount device node %s: %w", path, err)
	}
	return failure.New(failure.OfSpec, "root.path", "invalid rootfs %s: %w", s.Path, err)
}
