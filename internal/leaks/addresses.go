package leaks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network/cni/hostlocal"
)

// addresses lists what host-local has given out for the networks of this berth. Another runtime may use
// the same networks, so only what is known to be this berth's is removed, and what names no container.
func addresses(_ context.Context, f *Facts) ([]object, error) {
	stores, err := f.addressStores()
	if err != nil {
		return nil, err
	}
	var all []object
	for _, network := range slices.Sorted(maps.Keys(stores)) {
		store := stores[network]
		entries, err := store.Entries()
		if err != nil {
			return nil, fmt.Errorf("network %q: %w", network, err)
		}
		for _, e := range entries {
			if e.ContainerID == "" {
				all = append(all, emptyAddress(network, store, e))
				continue
			}
			was, err := f.wasOurs(e.ContainerID)
			if err != nil {
				return nil, err
			}
			o := object{
				owner: e.ContainerID, name: fmt.Sprintf("%s %s", network, e.Address), key: e.ContainerID + " " + e.Interface,
				evidence: fmt.Sprintf("%s of the network %s is given out to %s, of which this berth has no record; another runtime on this machine may have it", e.Address, network, e.ContainerID),
				fix:      "if no other runtime uses the network: rm " + store.File(e.Address),
			}
			if was {
				o.evidence = fmt.Sprintf("%s of the network %s is given out to sandbox %s of this berth, which has no record", e.Address, network, e.ContainerID)
				o.fix = "berth releases it within 15 minutes while it runs"
				o.does = "releases the address " + e.Address.String()
				o.remove = func(context.Context) error { return store.Release(e) }
			}
			all = append(all, o)
		}
	}
	return all, nil
}

// emptyAddress is an address whose file is empty: the container that had it is not known.
func emptyAddress(network string, store hostlocal.Store, e hostlocal.Entry) object {
	return object{
		unowned:  true,
		name:     fmt.Sprintf("%s %s", network, e.Address),
		key:      "empty " + e.Address.String(),
		evidence: fmt.Sprintf("%s of the network %s is given out, and its file names no container; a loss of power does that", e.Address, network),
		fix:      "berth releases it within 15 minutes while it runs",
		does:     "releases the addresses of the network " + network + " whose files are empty",
		remove:   func(context.Context) error { _, err := store.ReleaseEmpty(); return err },
	}
}

// addressStores are the stores of the configurations in berth's directory, by network.
func (f *Facts) addressStores() (map[string]hostlocal.Store, error) {
	entries, err := os.ReadDir(f.CNIConfDir)
	if err != nil {
		return nil, errs.IgnoreNotExist(err)
	}
	stores := map[string]hostlocal.Store{}
	for _, entry := range entries {
		if !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(entry.Name())) {
			continue
		}
		data, err := os.ReadFile(filepath.Join(f.CNIConfDir, entry.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read a CNI configuration: %w", err)
		}
		var list struct {
			Name    string
			Plugins []json.RawMessage
		}
		if json.Unmarshal(data, &list) != nil {
			continue // the check of the network reports it
		}
		for _, plugin := range append(list.Plugins, data) {
			if store, ok := hostlocal.Of(plugin, list.Name); ok {
				stores[list.Name] = store
			}
		}
	}
	return stores, nil
}

// wasOurs reports whether a sandbox was this berth's: there is a result of its ADD, or its record could
// not be read.
func (f *Facts) wasOurs(id string) (bool, error) {
	if !isID(id) {
		return false, nil
	}
	for _, dir := range []string{
		filepath.Join(f.Root, "network", "cni", "cache", "results"), filepath.Join(f.Root, "network", "cni", "quarantine"), filepath.Join(f.Root, "pods", "quarantine"),
	} {
		entries, err := os.ReadDir(dir)
		if err = errs.IgnoreNotExist(err); err != nil {
			return false, fmt.Errorf("cannot look for traces of a sandbox: %w", err)
		}
		if slices.ContainsFunc(entries, func(e os.DirEntry) bool { return strings.Contains(e.Name(), id) }) {
			return true, nil
		}
	}
	return false, nil
}
