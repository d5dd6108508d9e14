package rootfs

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"google.golang.org/grpc"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/snapshotters"
	"github.com/berthrun/berth/internal/sys/sysquota"
)

// managerWith returns a manager with a root filesystem "c1" of the snapshotter "lazy", which is remote behind a socket.
func managerWith(t *testing.T, remote snapshots.Snapshotter) *Manager {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth-rootfs-") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	snapshotsapi.RegisterSnapshotsServer(server, snapshotservice.FromSnapshotter(remote))
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	log := slog.New(slog.DiscardHandler)
	set, err := snapshotters.New(snapshotters.Config{Addresses: map[string]string{"lazy": socket}, Root: dir, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	m := New(Config{Paths: Paths{Root: dir, State: dir}, Snapshotters: set, Discard: os.RemoveAll, Log: log})
	if err := m.MakeDirs(); err != nil {
		t.Fatal(err)
	}
	m.uses["c1"] = use{Chain: "sha256:1", Proxy: "lazy"}
	return m
}

// using is a snapshotter whose containers have written 3 MiB.
type using struct{ snapshots.Snapshotter }

func (using) Usage(context.Context, string) (snapshots.Usage, error) {
	return snapshots.Usage{Size: 3 << 20, Inodes: 7}, nil
}

// TestUsageInASnapshotter: what is in a snapshotter counts also where the kernel counts the files of this store.
func TestUsageInASnapshotter(t *testing.T) {
	m := managerWith(t, using{})
	m.counted = func(string) (sysquota.Quota, bool, error) {
		return sysquota.Quota{Bytes: 20 << 10, Inodes: 5}, true, nil
	}
	usage, err := m.WritableUsage(t.Context(), "c1", nil)
	if err != nil || usage.Bytes != 3<<20+20<<10 || usage.Inodes != 12 {
		t.Errorf("%+v, %v", usage, err)
	}
}

// mountless is a snapshotter that prepares nothing.
type mountless struct{ snapshots.Snapshotter }

func (mountless) Prepare(context.Context, string, string, ...snapshots.Opt) ([]mount.Mount, error) {
	return nil, nil
}

// TestAnswerWithoutMounts: a container never gets an empty directory of the host in the place of its files.
func TestAnswerWithoutMounts(t *testing.T) {
	m := managerWith(t, mountless{})
	u, _ := m.use("c1")
	err := m.mountProxy(t.Context(), image.RootfsSpec{Key: "c1"}, u, m.mountPath("c1"))
	if err == nil || !strings.Contains(err.Error(), "the snapshotter lazy ") {
		t.Errorf("mounted: %v", err)
	}
}
