package leaks

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysmount"
	"github.com/berthrun/berth/internal/sys/sysnet"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// Kernel is the Host of this machine.
type Kernel struct{}

var _ Host = Kernel{}

// Mounts implements Host.
func (Kernel) Mounts(below string) ([]Mount, error) {
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(below))
	if err != nil {
		return nil, fmt.Errorf("cannot read the mount table: %w", err)
	}
	all := make([]Mount, 0, len(infos))
	for _, info := range infos {
		all = append(all, Mount{ID: info.ID, Path: info.Mountpoint, Type: info.FSType})
	}
	return all, nil
}

// Detach implements Host.
func (Kernel) Detach(path string) error { return sysmount.Detach(path) }

// RemoveNetNS implements Host.
func (Kernel) RemoveNetNS(path string) error { return sysns.RemoveNetNS(path) }

// Cgroups implements Host.
func (Kernel) Cgroups(parent string) ([]Cgroup, error) {
	tree, err := cgroup.Find()
	if err != nil {
		return nil, err
	}
	var all []Cgroup
	seen := map[string]bool{}
	// In one order, so that a cgroup has the same key in each list: hierarchies have inodes of their own.
	for _, dir := range slices.Compact(slices.Sorted(maps.Values(tree.Paths(parent)))) {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot list cgroups: %w", err)
		}
		for _, entry := range entries {
			if seen[entry.Name()] || !entry.IsDir() {
				continue
			}
			at := filepath.Join(parent, entry.Name())
			key, err := identity(filepath.Join(dir, entry.Name()))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			pids, err := tree.Paths(at).Pids()
			if err != nil {
				return nil, err
			}
			seen[entry.Name()] = true
			all = append(all, Cgroup{Path: at, Key: key, Processes: named(pids)})
		}
	}
	return all, nil
}

// HasCgroup implements Host.
func (Kernel) HasCgroup(parent string) (bool, error) {
	tree, err := cgroup.Find()
	if err != nil {
		return false, err
	}
	if strings.HasSuffix(parent, ".slice") && !strings.Contains(parent, "/") {
		if parent, err = cgroup.SlicePath(parent); err != nil {
			return false, err
		}
	}
	return tree.Exists(parent), nil
}

// HasNetNS implements Host.
func (Kernel) HasNetNS(path string) (bool, error) {
	ns, err := sysns.OpenNetNS(path)
	if errors.Is(err, errs.NotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, ns.Close()
}

// named are processes with the names of their programs.
func named(pids []int) []string {
	all := make([]string, 0, len(pids))
	for _, pid := range pids {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil {
			continue // it has ended
		}
		all = append(all, fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(name))))
	}
	return all
}

// RemoveCgroup implements Host.
func (Kernel) RemoveCgroup(ctx context.Context, path string, kill bool) error {
	tree, err := cgroup.Find()
	if err != nil {
		return err
	}
	paths := tree.Paths(path)
	if kill {
		if err := paths.Kill(ctx); err != nil {
			return err
		}
	}
	return paths.Remove(ctx)
}

// Links implements Host.
func (Kernel) Links(bridge string) ([]Link, error) {
	master, err := netlink.LinkByName(bridge)
	var absent netlink.LinkNotFoundError
	if errors.As(err, &absent) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot find the bridge %s: %w", bridge, err)
	}
	found, err := sysnet.WholeList(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("cannot list links: %w", err)
	}
	var all []Link
	for _, l := range found {
		if a := l.Attrs(); a.MasterIndex == master.Attrs().Index {
			all = append(all, Link{Index: a.Index, Name: a.Name, Alias: a.Alias})
		}
	}
	return all, nil
}

// RemoveLink implements Host.
func (Kernel) RemoveLink(l Link) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Index, attrs.Name = l.Index, l.Name
	if err := netlink.LinkDel(&netlink.Veth{LinkAttrs: attrs}); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("cannot delete the link %s: %w", l.Name, err)
	}
	return nil
}

// Elements implements Host.
func (Kernel) Elements(table string) ([]Element, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("cannot open the nftables socket: %w", err)
	}
	var all []Element
	for _, family := range []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge} {
		tables, err := conn.ListTablesOfFamily(family)
		if err != nil {
			return nil, fmt.Errorf("cannot list nftables tables: %w", err)
		}
		for _, t := range tables {
			if t.Name != table {
				continue
			}
			sets, err := conn.GetSets(t)
			if err != nil {
				return nil, fmt.Errorf("cannot list the sets of the nftables table %s: %w", table, err)
			}
			for _, set := range sets {
				elements, err := conn.GetSetElements(set)
				if err != nil {
					return nil, fmt.Errorf("cannot list the entries of the nftables set %s %s: %w", table, set.Name, err)
				}
				for _, e := range elements {
					all = append(all, Element{Family: family, Table: table, Set: set.Name, Key: e.Key, Val: e.Val})
				}
			}
		}
	}
	return all, nil
}

// RemoveElement implements Host.
func (Kernel) RemoveElement(e Element) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("cannot open the nftables socket: %w", err)
	}
	set, err := conn.GetSetByName(&nftables.Table{Name: e.Table, Family: e.Family}, e.Set)
	if err != nil {
		return fmt.Errorf("cannot find the nftables set %s %s: %w", e.Table, e.Set, err)
	}
	if err := conn.SetDeleteElements(set, []nftables.SetElement{{Key: e.Key, Val: e.Val}}); err != nil {
		return fmt.Errorf("cannot delete an entry of the nftables set %s %s: %w", e.Table, e.Set, err)
	}
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("cannot delete an entry of the nftables set %s %s: %w", e.Table, e.Set, err)
	}
	return nil
}

// SameNamespaces implements Host.
func (Kernel) SameNamespaces(pid int) (bool, error) {
	if pid < 0 {
		return false, nil
	}
	for _, kind := range []string{"mnt", "net"} {
		own, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return false, fmt.Errorf("cannot read the namespaces of this process: %w", err)
		}
		other, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
		if err != nil {
			return false, fmt.Errorf("cannot read the namespaces of process %d: %w", pid, err)
		}
		if own != other {
			return false, nil
		}
	}
	return true, nil
}
