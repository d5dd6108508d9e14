package leaks

import (
	"context"

	"github.com/google/nftables"
)

// Host is what the kernel has, and how it is removed. Removals of what is gone return nil.
type Host interface {
	// Mounts returns the mounts at and below a directory.
	Mounts(below string) ([]Mount, error)
	// Detach unmounts the topmost mount at a path, with all below it, also while it is in use.
	Detach(path string) error
	// RemoveNetNS removes the pin of a network namespace.
	RemoveNetNS(path string) error
	// Cgroups returns the cgroups right below one ("/berth-default"), of all hierarchies, by name.
	Cgroups(parent string) ([]Cgroup, error)
	// HasCgroup reports whether there is a cgroup at a path ("/berth-default/ID"), or of a slice ("kubepods-pod1.slice").
	HasCgroup(parent string) (bool, error)
	// HasNetNS reports whether a network namespace is pinned at a path.
	HasNetNS(path string) (bool, error)
	// RemoveCgroup kills what is in a cgroup if kill is set, and removes it.
	RemoveCgroup(ctx context.Context, path string, kill bool) error
	// Links returns the links whose master is the bridge, none if there is no such bridge.
	Links(bridge string) ([]Link, error)
	RemoveLink(l Link) error
	// Elements returns the elements of the sets and maps of a table in the families inet and bridge.
	Elements(table string) ([]Element, error)
	RemoveElement(e Element) error
	// SameNamespaces reports whether a process has the mount namespace and the network namespace of this
	// one. pid is -1 for a process that has no number here.
	SameNamespaces(pid int) (bool, error)
}

// Mount is one mount.
type Mount struct {
	ID   int
	Path string
	Type string
}

// Cgroup is one cgroup.
type Cgroup struct {
	// Path is from the root of the hierarchies, Key changes when it is made again.
	Path, Key string
	// Processes are those in it and below it, "PID (NAME)".
	Processes []string
}

// Link is one link of the host.
type Link struct {
	Index       int
	Name, Alias string
}

// Element is one entry of a set or map.
type Element struct {
	Family   nftables.TableFamily
	Table    string
	Set      string
	Key, Val []byte
}
