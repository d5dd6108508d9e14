// Package hostlocal reads the store of addresses of the IPAM plugin host-local. It changes
// nothing there but by Release and ReleaseEmpty: only the plugin does.
package hostlocal

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// defaultDataDir is the plugin's own default.
const defaultDataDir = "/var/lib/cni/networks"

// lockFile is what the plugin locks with flock, in the directory of a network.
const lockFile = "lock"

// Entry is an address that the plugin has given out.
type Entry struct {
	Address netip.Addr
	// ContainerID and Interface are those of ADD. Before version 0.8 the plugin wrote no
	// interface. Both are empty for a file without content; see ReleaseEmpty.
	ContainerID, Interface string
}

// Store is the directory of one network.
type Store struct{ dir string }

// Of returns the store that a plugin's configuration names, for the network of that name. It
// reports false when the plugin's IPAM is another.
func Of(plugin []byte, network string) (Store, bool) {
	var conf struct {
		IPAM struct{ Type, DataDir string } `json:"ipam"`
	}
	if json.Unmarshal(plugin, &conf) != nil || conf.IPAM.Type != "host-local" || !plain(network) {
		return Store{}, false
	}
	if conf.IPAM.DataDir == "" {
		conf.IPAM.DataDir = defaultDataDir
	}
	return Store{filepath.Join(conf.IPAM.DataDir, network)}, true
}

// Entries returns all entries of the store, none when it does not exist. Files that are not
// entries (locks, the last address of a range) are left out.
func (s Store) Entries() ([]Entry, error) {
	files, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, wrap(errs.IgnoreNotExist(err))
	}
	var all []Entry
	for _, f := range files {
		address, err := netip.ParseAddr(f.Name())
		if err != nil || !f.Type().IsRegular() {
			continue
		}
		entry, err := s.Entry(address)
		if errors.Is(err, errs.NotFound) {
			continue // released in the meantime
		}
		if err != nil {
			return nil, err
		}
		all = append(all, *entry)
	}
	return all, nil
}

// Entry returns the entry of an address, kind NotFound when the address is free.
func (s Store) Entry(address netip.Addr) (*Entry, error) {
	data, err := os.ReadFile(filepath.Join(s.dir, address.String()))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("address %s is not given out in %s: %w", address, s.dir, errs.NotFound)
	}
	if err != nil {
		return nil, wrap(err)
	}
	id, link, _ := strings.Cut(strings.TrimSpace(string(data)), "\n")
	return &Entry{address, strings.TrimSpace(id), strings.TrimSpace(link)}, nil
}

// File is the file of an address.
func (s Store) File(address netip.Addr) string { return filepath.Join(s.dir, address.String()) }

// Release removes what has the container and the interface of an entry, under the plugin's lock. Nil
// when it is gone.
func (s Store) Release(e Entry) (err error) {
	store, err := disk.New(filepath.Base(s.dir), filepath.Dir(s.dir))
	if err != nil {
		return fmt.Errorf("cannot release address %s: %w", e.Address, err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if err := store.Lock(); err != nil {
		return fmt.Errorf("cannot release address %s: %w", e.Address, err)
	}
	defer func() { err = errors.Join(err, store.Unlock()) }()
	if err := store.ReleaseByID(e.ContainerID, e.Interface); err != nil {
		return fmt.Errorf("cannot release address %s: %w", e.Address, err)
	}
	return nil
}

// ReleaseEmpty removes the files of addresses that have no content, and returns these addresses. After a loss of power
// a file may be there without what the plugin wrote into it, and no DEL finds it: DEL compares contents. The plugin
// writes a new file under its lock. While another has the lock, ReleaseEmpty returns nothing.
func (s Store) ReleaseEmpty() (released []netip.Addr, err error) {
	fault := func(err error) error {
		return fmt.Errorf("cannot release addresses without a container in %s: %w", s.dir, err)
	}
	lock, err := os.OpenFile(filepath.Join(s.dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // the network has no store yet
	}
	if err != nil {
		return nil, fault(err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }() // and the lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return nil, nil
	} else if err != nil {
		return nil, fault(err)
	}
	entries, err := s.Entries()
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.ContainerID != "" {
			continue
		}
		if err := os.Remove(s.File(e.Address)); err != nil {
			return released, fault(err)
		}
		released = append(released, e.Address)
	}
	return released, nil
}

func wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cannot read the addresses that host-local has given out: %w", err)
}

// plain reports whether a name is that of a file below a directory.
func plain(name string) bool {
	return name == filepath.Base(name) && name != "." && name != ".." && name != "/"
}
