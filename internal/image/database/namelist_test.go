package database

import (
	"fmt"
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
		found, err := d.ReadNames()
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
