package snapshotters

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
)

// parents is a snapshotter that has snapshots, each with its parent. As others do, it refuses to remove a parent, and
// reports that nothing is found before it has had its first snapshot.
type parents struct {
	snapshots.Snapshotter
	of map[string]string
	// files are the snapshots whose files are there. Remove leaves them to Cleanup.
	files map[string]string
}

func (p *parents) Cleanup(context.Context) error {
	p.files = maps.Clone(p.of)
	return nil
}

func (p *parents) Walk(ctx context.Context, fn snapshots.WalkFunc, _ ...string) error {
	if p.of == nil {
		return errdefs.ErrNotFound
	}
	for name, parent := range p.of {
		if err := fn(ctx, snapshots.Info{Name: name, Parent: parent}); err != nil {
			return err
		}
	}
	return nil
}

func (p *parents) Stat(_ context.Context, name string) (snapshots.Info, error) {
	if parent, ok := p.of[name]; ok {
		return snapshots.Info{Name: name, Parent: parent}, nil
	}
	return snapshots.Info{}, errdefs.ErrNotFound
}

func (p *parents) Remove(_ context.Context, name string) error {
	for _, parent := range p.of {
		if parent == name {
			return errdefs.ErrFailedPrecondition
		}
	}
	delete(p.of, name)
	return nil
}

// someUsers use the layers of an image, and a root filesystem.
type someUsers struct {
	tops map[string]bool
	key  string
	lost []string
}

func (u *someUsers) Tops(string) map[string]bool { return u.tops }

func (u *someUsers) Lost(_ context.Context, _, chain string) { u.lost = append(u.lost, chain) }

func (u *someUsers) HasRootfs(key string) bool { return key == u.key }

func TestCollect(t *testing.T) {
	remote := &parents{of: map[string]string{
		"b/low": "", "b/image": "b/low", "b/rootfs/c1": "b/image", // used
		"b/old": "b/low", "b/older": "", "b/oldest": "b/older", "b/rootfs/c2": "b/oldest", "b/extract/killed": "",
		"b/held": "", "b/rootfs/c3": "b/held", // of a container that is gone
		"b/pulled": "", "b/extract/pulling": "b/pulled", // of a pull that runs
		"k8s.io/1/low": "", "k8s.io/2/x": "k8s.io/1/low",
	}}
	remote.files = maps.Clone(remote.of)
	s := &Snapshotter{Name: "lazy", prefix: "b/", remote: remote, busy: map[string]int{}}
	release, err := s.Hold(t.Context(), []string{"pulled", "pulling"})
	if err != nil {
		t.Fatal(err)
	}
	users := &someUsers{tops: map[string]bool{"image": true, "gone": true}, key: "c1"}
	if err := s.collect(t.Context(), users); err != nil {
		t.Fatal(err)
	}
	want := []string{"b/extract/pulling", "b/image", "b/low", "b/pulled", "b/rootfs/c1", "k8s.io/1/low", "k8s.io/2/x"}
	if got := slices.Sorted(maps.Keys(remote.of)); !slices.Equal(got, want) {
		t.Errorf("left are %q, want %q", got, want)
	}
	if !maps.Equal(remote.files, remote.of) {
		t.Errorf("there are files of %v", remote.files)
	}
	if !slices.Equal(users.lost, []string{"gone"}) {
		t.Errorf("lost %q", users.lost)
	}
	release()
	if err := s.collect(t.Context(), users); err != nil || len(remote.of) != 5 {
		t.Errorf("after the pull: %v, left are %v", err, remote.of)
	}
}

// A snapshotter that never had a snapshot has nothing to remove.
func TestCollectNothing(t *testing.T) {
	s := &Snapshotter{Name: "lazy", prefix: "b/", remote: &parents{}, busy: map[string]int{}}
	if err := s.collect(t.Context(), &someUsers{}); err != nil {
		t.Error(err)
	}
}

// unlisted is a snapshotter whose database is gone: it has no list, and answers that each snapshot is not found.
type unlisted struct{ parents }

func (*unlisted) Walk(context.Context, snapshots.WalkFunc, ...string) error {
	return errors.New("bucket does not exist")
}

// A snapshotter that has lost everything has lost the layers of images.
func TestLostWithoutAList(t *testing.T) {
	s := &Snapshotter{Name: "lazy", prefix: "b/", remote: &unlisted{}, busy: map[string]int{}}
	users := &someUsers{tops: map[string]bool{"image": true}}
	if err := s.collect(t.Context(), users); err == nil || !slices.Equal(users.lost, []string{"image"}) {
		t.Errorf("lost %q, %v", users.lost, err)
	}
}

// One that has no list yet, and none of the images, is new. Later it is an error.
func TestNewWithoutAList(t *testing.T) {
	s := &Snapshotter{Name: "lazy", prefix: "b/", remote: &unlisted{}, busy: map[string]int{}}
	if err := s.collect(t.Context(), &someUsers{}); err != nil {
		t.Error(err)
	}
	s.remote = &parents{of: map[string]string{"b/held": ""}}
	if err := s.collect(t.Context(), &someUsers{}); err != nil {
		t.Error(err)
	}
	s.remote = &unlisted{}
	if err := s.collect(t.Context(), &someUsers{}); err == nil {
		t.Error("collect ignores the error of the list")
	}
}
