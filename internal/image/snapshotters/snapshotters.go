// Package snapshotters reaches proxy snapshotters of containerd: processes such as stargz-snapshotter that make root
// filesystems from layers which they fetch when a container reads them. The snapshotter image.ErofsSnapshotter is package erofs,
// and runs in this process. This package has snapshots made for the layers of images and for containers, and removes those that
// nothing uses. It knows the names of images and containers, and nothing else of them.
//
// A snapshotter keeps its snapshots itself, and berth has no second list of them. Their names begin with an identifier of the
// image store and the name of the snapshotter, since other stores, containerd, and the same store under another name may use
// the same process:
//
//	berth-ID/NAME/CHAIN          the layer with this chain (see Chains), and all below it; committed
//	berth-ID/NAME/extract/CHAIN  a layer that is being made
//	berth-ID/NAME/rootfs/KEY     what the container of KEY writes
//
// Those of package erofs are this store's alone, and have no berth-ID/NAME/.
package snapshotters

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/erofs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

const (
	// FileName is the file of an image store with its identifier.
	FileName = "snapshotters-id"

	// maxBackoff is how long calls to a snapshotter that was away may fail at once after it is back.
	maxBackoff = time.Second
	// maxMessage is the largest answer, in bytes: the list of all snapshots.
	maxMessage = 16 << 20
)

// Config of a set.
type Config struct {
	// Addresses are the paths of the sockets, by the names of the snapshotters.
	Addresses map[string]string
	// Root is the directory of the image store. It has the file FileName with the identifier of the store.
	Root string
	// Own has the layers of the snapshotter image.ErofsSnapshotter; nil for none.
	Own *erofs.Store
	Log *slog.Logger
}

// Set has the snapshotters of a node. Its methods are safe for concurrent use.
type Set struct {
	byName map[string]*Snapshotter
	own    *erofs.Store
	log    *slog.Logger
}

// New makes a set. It connects to a snapshotter when it first calls it. No other process uses the directory.
func New(cfg Config) (*Set, error) {
	s := &Set{byName: map[string]*Snapshotter{}, own: cfg.Own, log: cfg.Log}
	if cfg.Own != nil {
		s.byName[image.ErofsSnapshotter] = &Snapshotter{
			Name: image.ErofsSnapshotter, address: cfg.Own.Root, remote: cfg.Own, own: cfg.Own, busy: map[string]int{}, wake: make(chan struct{}, 1),
		}
	}
	if len(cfg.Addresses) == 0 {
		return s, nil
	}
	id, err := storeID(cfg.Root, cfg.Log)
	if err != nil {
		return nil, fmt.Errorf("cannot choose names of snapshots: %w", err)
	}
	for name, address := range cfg.Addresses {
		conn, err := grpc.NewClient("unix:"+address,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: maxBackoff / 10, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxBackoff}}),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("cannot use the snapshotter %s at %s: %w", name, address, err), s.Close())
		}
		s.byName[name] = &Snapshotter{
			Name: name, address: address, prefix: "berth-" + id + "/" + name + "/", conn: conn,
			remote: proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(conn), name), busy: map[string]int{}, wake: make(chan struct{}, 1),
		}
	}
	return s, nil
}

// storeID reads the identifier of an image store, or chooses one: the stores of several machines or containers may have the
// same directory and use one snapshotter. A store that loses it uses none of its snapshots any more, and they stay.
func storeID(root string, log *slog.Logger) (string, error) {
	file := filepath.Join(root, FileName)
	data, err := database.ReadOwn(file)
	id := string(data)
	if err == nil && len(id) == len(rand.Text()) && strings.Trim(id, "abcdefghijklmnopqrstuvwxyz234567") == "" {
		return id, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		log.Warn("the identifier of the image store cannot be read; choosing another one: what snapshotters have is pulled again, and their snapshots stay", "file", file, "error", err)
	}
	id = strings.ToLower(rand.Text())
	return id, sysfile.ReplaceSynced(file, []byte(id))
}

// Close closes the connections, and unmounts what no root filesystem uses.
func (s *Set) Close() error {
	var list []error
	for _, one := range s.byName {
		if one.conn != nil {
			list = append(list, one.conn.Close())
		}
	}
	if s.own != nil {
		list = append(list, s.own.Close())
	}
	return errors.Join(list...)
}

// Find returns the snapshotter of a name, nil for "". Kind Unavailable when there is none.
func (s *Set) Find(name string) (*Snapshotter, error) {
	if name == "" {
		return nil, nil //nolint:nilnil // layers are unpacked without one
	}
	if one, ok := s.byName[name]; ok {
		return one, nil
	}
	has := "there is none"
	if len(s.byName) > 0 {
		has = "there are " + strings.Join(slices.Sorted(maps.Keys(s.byName)), ", ")
	}
	return nil, fmt.Errorf("the snapshotter %q is not in image.snapshotters of the running berth (%s); add it, and restart berth: %w", name, has, errs.Unavailable)
}

// Own returns the layers of a snapshotter that is berth's own, nil for a proxy, and for "".
func (s *Set) Own(name string) *erofs.Store {
	if one := s.byName[name]; one != nil {
		return one.own
	}
	return nil
}

// OwnSizes returns the room of the layers of berth's own snapshotter on disk, in bytes, by their chains, and OwnTotal the sum.
func (s *Set) OwnSizes() map[string]int64 {
	if s.own == nil {
		return nil
	}
	return s.own.Sizes()
}

// OwnTotal is the sum of OwnSizes, and how many files these are.
func (s *Set) OwnTotal() (bytes, inodes int64) {
	if s.own == nil {
		return 0, 0
	}
	return s.own.Total()
}

// OwnChain returns the chain of the layer of berth's own snapshotter whose mount has a path, "" if it is none.
func (s *Set) OwnChain(path string) string {
	if s.own == nil {
		return ""
	}
	return s.own.ChainOf(path)
}

// SweepOwn unmounts the layers of berth's own snapshotter that no root filesystem uses. Root filesystems are loaded.
func (s *Set) SweepOwn() error {
	if s.own == nil {
		return nil
	}
	return s.own.Sweep()
}

// Has reports whether a name is in the set.
func (s *Set) Has(name string) bool { return s.byName[name] != nil }
