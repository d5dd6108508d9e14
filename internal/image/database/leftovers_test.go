package database

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/tree"
)

func openDB(t *testing.T, root string) *DB {
	t.Helper()
	d := New(Paths{Root: root}, os.RemoveAll, slog.New(slog.DiscardHandler))
	if err := d.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return d
}

func blobOf(text string) imagespec.Descriptor {
	return imagespec.Descriptor{Digest: digest.FromString(text), Size: int64(len(text))}
}

// treeOf is an image whose manifest and layers have these contents.
func treeOf(manifest string, layers ...string) *tree.Tree {
	t := &tree.Tree{Target: blobOf(manifest), Manifest: blobOf(manifest), Config: blobOf("config of " + manifest)}
	for _, layer := range layers {
		t.Layers = append(t.Layers, blobOf(layer))
	}
	return t
}

func fetched(t *testing.T, ctx context.Context, d *DB, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if err := content.WriteBlob(ctx, d.Content, "write-"+text, strings.NewReader(text), blobOf(text)); err != nil {
			t.Fatal(err)
		}
	}
}

// has asserts which of these blobs the content store and the disk have.
func has(t *testing.T, d *DB, want ...string) {
	t.Helper()
	var got []string
	err := d.Content.Walk(WithNamespace(t.Context()), func(info content.Info) error {
		data, err := os.ReadFile(d.BlobPath(info.Digest))
		got = append(got, string(data))
		return err
	})
	slices.Sort(got)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("the store has %q, %v, want %q", got, err, want)
	}
	files, err := filepath.Glob(filepath.Join(d.ContentDir(), "blobs/sha256/*"))
	if err != nil || len(files) != len(want) {
		t.Errorf("the disk has %q, %v, want %d", files, err, len(want))
	}
}

// killed is a store after a kill of a pull, which had moved blobs to their place and not recorded them yet.
func killed(t *testing.T, root string) *DB {
	t.Helper()
	d := openDB(t, root)
	ctx := WithNamespace(t.Context())
	// As WithPull leaves it at a kill.
	lease, err := d.Leases.Create(ctx, leases.WithID(newLease(pullLease)), leases.WithLabels(map[string]string{pulledLabel: "app:1"}))
	if err != nil {
		t.Fatal(err)
	}
	p := &Pull{db: d, lease: lease, key: "app:1"}
	fetched(t, leases.WithLease(ctx, lease.ID), d, "manifest")
	err = p.Wants(ctx, treeOf("manifest", "recorded", "moved", "damaged", "never sent"))
	fetched(t, leases.WithLease(ctx, lease.ID), d, "recorded")
	for text, data := range map[string]string{"moved": "moved", "damaged": "other", "of no pull": "of no pull"} {
		err = errors.Join(err, os.WriteFile(d.BlobPath(digest.FromString(text)), []byte(data), 0o600))
	}
	if err = errors.Join(err, d.Close()); err != nil {
		t.Fatal(err)
	}
	return openDB(t, root)
}

// TestKillBetweenFileAndRecord: a start adopts the blobs that a killed pull had moved to their place and not recorded yet, if
// their digest is right, and no others.
func TestKillBetweenFileAndRecord(t *testing.T) {
	root := t.TempDir()
	ctx := WithNamespace(t.Context())
	d := killed(t, root)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second start finds what the first one has kept
		d = openDB(t, root)
		if err := d.DropWork(ctx); err != nil {
			t.Fatal(err)
		}
		if err := d.Sweep(ctx); err != nil {
			t.Fatal(err)
		}
		has(t, d, "manifest", "moved", "recorded")
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	d = openDB(t, root)
	defer d.Close()
	never := func(error) bool { return false }
	err := d.WithPull(ctx, "other:1", never, func(ctx context.Context, p *Pull) error { return p.Wants(ctx, treeOf("manifest")) })
	if err != nil {
		t.Fatal(err)
	}
	has(t, d) // the other name has the same manifest, and no image was recorded
}

// pullOf pulls an image of one layer, up to an end with result. The next pull after an Unavailable one may succeed.
func pullOf(t *testing.T, d *DB, key, manifest, layer string, result error) {
	t.Helper()
	again := func(err error) bool { return errors.Is(err, errs.Unavailable) }
	err := d.WithPull(t.Context(), key, again, func(ctx context.Context, p *Pull) error {
		fetched(t, ctx, d, manifest)
		if err := p.Wants(ctx, treeOf(manifest, layer)); err != nil {
			return err
		}
		if err := d.Present(ctx, blobOf(layer)); err != nil {
			fetched(t, ctx, d, layer)
		}
		return result
	})
	if !errors.Is(err, result) {
		t.Fatal(err)
	}
}

// leftBy asserts which names have leftovers, the newest first.
func leftBy(t *testing.T, d *DB, want ...string) []Leftover {
	t.Helper()
	all, err := d.Leftovers(WithNamespace(t.Context()))
	var keys []string
	for _, k := range all {
		keys = append(keys, k.Key)
	}
	if err != nil || !slices.Equal(keys, want) {
		t.Errorf("%q have leftovers, %v, want %q", keys, err, want)
	}
	return all
}

// TestPullsOfOneName: the pulls of a tag that moves leave one leftover for each manifest, with its own expiry, and the bound
// counts each. All go with the first pull that succeeds or fails for good.
func TestPullsOfOneName(t *testing.T) {
	ctx := WithNamespace(t.Context())
	for name, end := range map[string]error{"success": nil, "failure": errs.Invalid} {
		t.Run(name, func(t *testing.T) {
			d := openDB(t, t.TempDir())
			defer d.Close()
			for range 2 { // the second leftover takes the place of the first one
				pullOf(t, d, "app:1", "a", "layer of a", errs.Unavailable)
			}
			first := leftBy(t, d, "app:1")
			pullOf(t, d, "app:1", "b", "layer of b", errs.Unavailable) // the tag has moved
			has(t, d, "a", "b", "layer of a", "layer of b")
			if now := leftBy(t, d, "app:1", "app:1"); len(now) == 2 && !now[1].Expires.Equal(first[0].Expires) {
				t.Errorf("what has expired at %s expires at %s", first[0].Expires, now[1].Expires)
			}
			// Before it knows the image, a pull takes nothing away.
			err := d.WithPull(t.Context(), "app:1", func(error) bool { return false }, func(context.Context, *Pull) error { return errs.Invalid })
			if !errors.Is(err, errs.Invalid) {
				t.Error(err)
			}
			leftBy(t, d, "app:1", "app:1")
			pullOf(t, d, "app:1", "c", "layer of c", errs.Unavailable)
			if err := d.boundLeftovers(ctx, 1); err != nil {
				t.Error(err)
			}
			d.Collect(ctx)
			has(t, d, "c", "layer of c")
			pullOf(t, d, "app:1", "a", "layer of a", errs.Unavailable)
			pullOf(t, d, "app:1", "c", "layer of c", end)
			has(t, d)
			if all, err := d.Leases.List(ctx); err != nil || len(all) > 0 {
				t.Errorf("leases left: %+v, %v", all, err)
			}
		})
	}
}

// TestPullByAnotherName: the leftover of a name whose client tries again survives a pull by another name that fails for good,
// unless a blob is damaged. A pull that succeeds leaves nothing.
func TestPullByAnotherName(t *testing.T) {
	for name, c := range map[string]struct {
		damage bool
		end    error
		left   []string
	}{
		"failure": {end: errs.Invalid, left: []string{"app:1"}},
		"damage":  {damage: true, end: errs.Invalid},
		"success": {},
	} {
		t.Run(name, func(t *testing.T) {
			d := openDB(t, t.TempDir())
			defer d.Close()
			pullOf(t, d, "app:1", "a", "layer of a", errs.Unavailable)
			if c.damage {
				if err := os.WriteFile(d.BlobPath(blobOf("layer of a").Digest), []byte("layer of b"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			pullOf(t, d, "other:1", "a", "layer of a", c.end)
			leftBy(t, d, c.left...)
			if c.left == nil {
				has(t, d)
				return
			}
			has(t, d, "a", "layer of a")
		})
	}
}

// TestDroppedWhileAPullRuns: the unfinished downloads that a pull under way will continue stay.
func TestDroppedWhileAPullRuns(t *testing.T) {
	d := openDB(t, t.TempDir())
	defer d.Close()
	pullOf(t, d, "app:1", "a", "layer of a", errs.Unavailable)
	pullOf(t, d, "app:1", "b", "layer of b", errs.Unavailable)
	err := d.WithPull(t.Context(), "other:1", func(error) bool { return false }, func(ctx context.Context, p *Pull) error {
		err := p.Wants(ctx, treeOf("a", "layer of a"))
		dropped, unwanted, dropErr := d.DropLeftovers(ctx, func(Leftover) bool { return true })
		slices.Sort(unwanted)
		want := []digest.Digest{blobOf("b").Digest, blobOf("config of b").Digest, blobOf("layer of b").Digest}
		slices.Sort(want)
		if !dropped || !slices.Equal(unwanted, want) {
			t.Errorf("dropped: %v, not wanted: %v, want %v", dropped, unwanted, want)
		}
		d.Collect(ctx)
		has(t, d, "a", "layer of a")
		return errors.Join(err, dropErr)
	})
	if err != nil {
		t.Error(err)
	}
}

// TestLeftoversAreBounded: the oldest go first, the newest stays though it is too large alone, and a shared blob counts once.
func TestLeftoversAreBounded(t *testing.T) {
	d := openDB(t, t.TempDir())
	defer d.Close()
	ctx := WithNamespace(t.Context())
	shared := bytes.Repeat([]byte("s"), 100)
	for _, key := range []string{"oldest", "old", "new"} {
		err := d.WithPull(ctx, key, func(error) bool { return true }, func(ctx context.Context, _ *Pull) error {
			fetched(t, ctx, d, key+strings.Repeat("x", 100))
			err := content.WriteBlob(ctx, d.Content, "shared", bytes.NewReader(shared), blobOf(string(shared)))
			return errors.Join(err, errs.Unavailable)
		})
		if !errors.Is(err, errs.Unavailable) {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		bound int64
		want  []string
	}{{1000, []string{"new", "old", "oldest"}}, {310, []string{"new", "old"}}, {1, []string{"new"}}} {
		if err := d.boundLeftovers(ctx, c.bound); err != nil {
			t.Fatal(err)
		}
		all, err := d.Leftovers(ctx)
		var keys []string
		for _, k := range all {
			keys = append(keys, k.Key)
		}
		if err != nil || !slices.Equal(keys, c.want) {
			t.Errorf("within %d bytes: %q, %v, want %q", c.bound, keys, err, c.want)
		}
	}
	if bytes, unfinished, err := d.LeftoverBytes(ctx); err != nil || bytes != 203 || unfinished != 0 {
		t.Errorf("the leftovers have %d and %d bytes, %v, want 203 and 0", bytes, unfinished, err)
	}
}

// brokenLeases are leases that cannot be made with this prefix, or not be listed.
type brokenLeases struct {
	leases.Manager
	prefix string
	noList bool
}

func (b brokenLeases) Create(ctx context.Context, opts ...leases.Opt) (leases.Lease, error) {
	var lease leases.Lease
	for _, opt := range opts {
		if err := opt(&lease); err != nil {
			return lease, err
		}
	}
	if b.prefix != "" && strings.HasPrefix(lease.ID, b.prefix) {
		return lease, errs.Exhausted
	}
	return b.Manager.Create(ctx, opts...)
}

func (b brokenLeases) List(ctx context.Context, filters ...string) ([]leases.Lease, error) {
	if b.noList {
		return nil, errs.Exhausted
	}
	return b.Manager.List(ctx, filters...)
}

type brokenImages struct{ images.Store }

func (brokenImages) List(context.Context, ...string) ([]images.Image, error) {
	return nil, errs.Exhausted
}

type brokenContent struct{ content.Store }

func (brokenContent) Writer(context.Context, ...content.WriterOpt) (content.Writer, error) {
	return nil, errs.Exhausted
}

// TestAStartWithoutLeftovers: a start goes on if it cannot make a leftover of a killed pull.
func TestAStartWithoutLeftovers(t *testing.T) {
	for name, c := range map[string]struct {
		breaks func(d *DB)
		left   []string
	}{
		"a blob cannot be adopted": {func(d *DB) { d.Content = brokenContent{d.Content} }, []string{"manifest", "recorded"}},
		"nothing can be kept":      {func(d *DB) { d.Leases = brokenLeases{Manager: d.Leases, prefix: leftoverLease} }, nil},
		"the bound is not known":   {func(d *DB) { d.Images = brokenImages{d.Images} }, []string{"manifest", "moved", "recorded"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := killed(t, t.TempDir())
			defer d.Close()
			blobs, manager, records := d.Content, d.Leases, d.Images
			c.breaks(d)
			ctx := WithNamespace(t.Context())
			err := d.DropWork(ctx)
			d.Content, d.Leases, d.Images = blobs, manager, records
			if err = errors.Join(err, d.Sweep(ctx)); err != nil {
				t.Fatal(err)
			}
			has(t, d, c.left...)
		})
	}
}

// TestALeaseOfAPullEndsWithIt: also if it can have no leftover, or those of others cannot be listed. The
// outcome of the pull is the same.
func TestALeaseOfAPullEndsWithIt(t *testing.T) {
	for name, c := range map[string]struct {
		broken brokenLeases
		result error
	}{
		"nothing can be kept":                {brokenLeases{prefix: leftoverLease}, errs.Unavailable},
		"others cannot be listed":            {brokenLeases{noList: true}, nil},
		"and they cannot after a failure":    {brokenLeases{noList: true}, errs.Unavailable},
		"and they cannot after one for good": {brokenLeases{noList: true}, errs.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			d := openDB(t, t.TempDir())
			defer d.Close()
			whole := d.Leases
			again := func(err error) bool { return errors.Is(err, errs.Unavailable) }
			err := d.WithPull(t.Context(), "app:1", again, func(ctx context.Context, p *Pull) error {
				fetched(t, ctx, d, "manifest")
				err := p.Wants(ctx, treeOf("manifest", "layer"))
				c.broken.Manager = whole
				d.Leases = c.broken
				return errors.Join(err, c.result)
			})
			if !errors.Is(err, c.result) {
				t.Errorf("the pull ends with %v, want %v", err, c.result)
			}
			if left, err := whole.List(WithNamespace(t.Context())); err != nil || len(left) > 0 {
				t.Errorf("leases are left: %+v, %v", left, err)
			}
		})
	}
}

// TestRecordsEndThePull: the names keep what a pull has fetched, and the pull leaves no lease.
func TestRecordsEndThePull(t *testing.T) {
	d := openDB(t, t.TempDir())
	defer d.Close()
	ctx := WithNamespace(t.Context())
	write := func(ctx context.Context, text string) imagespec.Descriptor {
		desc := imagespec.Descriptor{MediaType: imagespec.MediaTypeImageManifest, Digest: digest.FromString(text), Size: int64(len(text))}
		if err := content.WriteBlob(ctx, d.Content, text, strings.NewReader(text), desc); err != nil {
			t.Fatal(err)
		}
		return desc
	}
	fault := errors.New("after the records")
	for name, end := range map[string]error{"succeeds": nil, "fails after them": fault} {
		t.Run(name, func(t *testing.T) {
			image := &tree.Tree{}
			err := d.WithPull(ctx, name, func(error) bool { return true }, func(ctx context.Context, _ *Pull) error {
				image.Manifest, image.Config = write(ctx, "manifest of "+name), write(ctx, "config of "+name)
				image.Target = image.Manifest
				image.Image.RootFS.DiffIDs = []digest.Digest{digest.FromString("a layer")}
				return errors.Join(d.WriteRecords(ctx, image, []string{name}, nil, false, nil), end)
			})
			if !errors.Is(err, end) {
				t.Fatalf("the pull: %v, want %v", err, end)
			}
			if all, err := d.Leases.List(ctx); err != nil || len(all) > 0 {
				t.Errorf("there are leases %v, %v", all, err)
			}
			d.Collect(ctx)
			for _, desc := range []imagespec.Descriptor{image.Manifest, image.Config} {
				if _, err := d.Content.Info(ctx, desc.Digest); err != nil {
					t.Errorf("the collector has removed what the image needs: %v", err)
				}
			}
		})
	}
}
