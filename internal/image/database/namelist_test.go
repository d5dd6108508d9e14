package database

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestCopyOfNames: the copy never has a name that the database lacks, and has each one once its call of SaveNames has returned.
func TestCopyOfNames(t *testing.T) {
	d := openDB(t, t.TempDir())
	defer d.Close()
	ctx := WithNamespace(t.Context())
	copied := func() (names []string) {
		found, _, err := d.ReadNames()
		if err != nil {
			t.Error(err)
		}
		for _, one := range found {
			names = append(names, one.Name)
		}
		return names
	}
	add := func(name string) error {
		_, err := d.Images.Create(ctx, images.Image{Name: name, Target: imagespec.Descriptor{MediaType: "x", Digest: digest.FromString(name), Size: 1}})
		return err
	}
	if err := add("going"); err != nil {
		t.Fatal(err)
	}
	free := d.leaveOut(ctx, map[string]bool{"going": true})
	var group sync.WaitGroup
	for i := range 20 {
		group.Go(func() {
			name := fmt.Sprint("name-", i)
			if err := add(name); err != nil {
				t.Error(err)
			}
			d.SaveNames(ctx)
			if now := copied(); !slices.Contains(now, name) || slices.Contains(now, "going") {
				t.Errorf("the copy has %q, want %s, and not the name that is about to be removed", now, name)
			}
		})
	}
	group.Wait()
	free()
	d.SaveNames(ctx)
	if !slices.Contains(copied(), "going") {
		t.Error("the copy lacks a name that was not removed after all")
	}
	if err := d.DeleteRecords(ctx, map[string]bool{"going": true, "name-3": true}, ""); err != nil {
		t.Fatal(err)
	}
	if now := copied(); len(now) != 19 || slices.Contains(now, "going") || slices.Contains(now, "name-3") {
		t.Errorf("the copy has %q after the removal of two names", now)
	}
}

// TestCopyOfNamesOnAFullDisk: a removal whose copy cannot be written leaves no copy, since a start would miss the name in the
// database. The collection, which has made room, writes it again.
func TestCopyOfNamesOnAFullDisk(t *testing.T) {
	d := openDB(t, t.TempDir())
	defer d.Close()
	ctx := WithNamespace(t.Context())
	_, err := d.Images.Create(ctx, images.Image{Name: "app", Target: imagespec.Descriptor{MediaType: "x", Digest: digest.FromString("app"), Size: 1}})
	if err != nil {
		t.Fatal(err)
	}
	d.SaveNames(ctx)
	// A directory in the place of the copy has the effect of a full disk: the write fails, and what was there stays.
	if err := errors.Join(os.Remove(d.namesPath()), os.Mkdir(d.namesPath(), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := d.DeleteRecords(ctx, map[string]bool{"app": true}, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(d.namesPath()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what is in the place of the copy: %v", err)
	}
	d.Collect(ctx)
	if names, _, err := d.ReadNames(); err != nil || len(names) > 0 {
		t.Errorf("the copy has %+v, %v, and the database has no image", names, err)
	}
}
