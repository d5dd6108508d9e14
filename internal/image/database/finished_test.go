package database

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/database/partfile"
)

// download downloads a blob as a registry does.
func download(t *testing.T, ctx context.Context, d *DB, text string) {
	t.Helper()
	w, err := d.BeginDownload(ctx, blobOf(text))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(w, strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Commit(ctx, int64(len(text)), digest.FromString(text)), w.Close()); err != nil {
		t.Fatal(err)
	}
}

// recorded reports whether the database knows a blob.
func recorded(t *testing.T, d *DB, text string) bool {
	t.Helper()
	_, err := d.Content.Info(WithNamespace(t.Context()), digest.FromString(text))
	if err != nil && !errdefs.IsNotFound(err) {
		t.Fatal(err)
	}
	return err == nil
}

// TestLayersAreRecordedTogether: the database knows a document at once, and a layer later. Until then the collector leaves its
// file alone, and another pull uses it.
func TestLayersAreRecordedTogether(t *testing.T) {
	d := openDB(t, t.TempDir())
	defer d.Close()
	err := d.WithPull(t.Context(), "app:1", func(error) bool { return true }, func(ctx context.Context, p *Pull) error {
		download(t, ctx, d, "manifest")
		if !recorded(t, d, "manifest") {
			t.Error("the database does not know a document")
		}
		if err := p.Wants(ctx, treeOf("manifest", "one", "two")); err != nil {
			return err
		}
		download(t, ctx, d, "one")
		download(t, ctx, d, "two")
		if recorded(t, d, "one") || recorded(t, d, "two") {
			t.Error("the database knows a layer before its file is synced")
		}
		if err := d.Sweep(WithNamespace(t.Context())); err != nil {
			return err
		}
		other := d.WithPull(t.Context(), "other:1", func(error) bool { return false }, func(ctx context.Context, p *Pull) error {
			if err := p.Wants(ctx, treeOf("manifest", "one")); err != nil {
				return err
			}
			if _, err := d.BeginDownload(ctx, blobOf("one")); !errdefs.IsAlreadyExists(err) {
				t.Errorf("another pull downloads the layer again: %v", err)
			}
			return d.RecordBlobs(ctx, []digest.Digest{digest.FromString("one")})
		})
		if !recorded(t, d, "one") || recorded(t, d, "two") {
			t.Error("the other pull has not recorded its layer, or that of another image")
		}
		document := d.WithPull(t.Context(), "artifact:1", func(error) bool { return false }, func(ctx context.Context, _ *Pull) error {
			if _, err := d.BeginDownload(ctx, blobOf("two")); !errdefs.IsAlreadyExists(err) || !recorded(t, d, "two") {
				t.Errorf("a layer that is a document of another image: %v, or it has no record", err)
			}
			return nil
		})
		return errors.Join(other, document, errs.Unavailable)
	})
	if !errors.Is(err, errs.Unavailable) {
		t.Fatal(err)
	}
	has(t, d, "manifest", "one", "two") // the leftover, of which nothing is fetched again
}

// TestDocumentsAreRecordedTogether: those of an image, which the pull reads before that. The collector leaves their files alone,
// and a pull that ends earlier records them.
func TestDocumentsAreRecordedTogether(t *testing.T) {
	d := openDB(t, t.TempDir())
	defer d.Close()
	provide := func(ctx context.Context, desc imagespec.Descriptor) error {
		for _, text := range []string{"manifest", "config"} {
			if desc.Digest == digest.FromString(text) {
				download(t, ctx, d, text)
			}
		}
		data, err := content.ReadBlob(ctx, d.Compared(), desc)
		if err != nil || digest.FromBytes(data) != desc.Digest {
			t.Errorf("the pull reads %q, %v", data, err)
		}
		return err
	}
	resolved := func(ctx context.Context, p *Pull) error {
		for _, text := range []string{"manifest", "config"} {
			if err := p.noting(provide)(ctx, blobOf(text)); err != nil {
				return err
			}
		}
		_, err := d.ReadTree(ctx, "app:1", "", blobOf("index"), func(ctx context.Context, desc imagespec.Descriptor) error {
			download(t, ctx, d, "index")
			return errs.Invalid // the test needs no index that can be read
		})
		if !errors.Is(err, errs.Invalid) || recorded(t, d, "manifest") || recorded(t, d, "config") || recorded(t, d, "index") {
			t.Errorf("the documents are recorded one by one: %v", err)
		}
		d.Collect(WithNamespace(t.Context()))
		return nil
	}
	never := func(error) bool { return false }
	err := d.WithPull(t.Context(), "app:1", func(error) bool { return true }, func(ctx context.Context, p *Pull) error {
		return errors.Join(resolved(ctx, p), errs.Unavailable) // such as a policy that cannot be asked
	})
	if !errors.Is(err, errs.Unavailable) {
		t.Fatal(err)
	}
	has(t, d, "config", "index", "manifest")
	if _, _, err := d.DropLeftovers(WithNamespace(t.Context()), func(Leftover) bool { return true }); err != nil {
		t.Fatal(err)
	}
	d.Collect(WithNamespace(t.Context()))
	has(t, d)
	err = d.WithPull(t.Context(), "app:1", never, func(ctx context.Context, p *Pull) error {
		if err := resolved(ctx, p); err != nil {
			return err
		}
		other := d.WithPull(t.Context(), "other:1", never, func(ctx context.Context, p *Pull) error {
			return p.noting(func(ctx context.Context, desc imagespec.Descriptor) error {
				_, err := d.BeginDownload(ctx, desc)
				if !errdefs.IsAlreadyExists(err) || !recorded(t, d, "manifest") || recorded(t, d, "config") {
					t.Errorf("another pull downloads the manifest: %v, or has not recorded it alone", err)
				}
				return nil
			})(ctx, blobOf("manifest"))
		})
		d.Collect(WithNamespace(t.Context())) // the other pull has ended
		if err := errors.Join(other, p.Wants(ctx, treeOf("manifest", "config"))); err != nil {
			return err
		}
		d.Collect(WithNamespace(t.Context()))
		has(t, d, "config", "index", "manifest")
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestADocumentOfTwoPulls: each of them keeps it, whichever downloads it and whichever records it, also after the other has
// failed.
func TestADocumentOfTwoPulls(t *testing.T) {
	never := func(error) bool { return false }
	leaseOf := func(t *testing.T, d *DB, p *Pull) []digest.Digest {
		blobs, err := d.blobsOf(WithNamespace(t.Context()), p.lease)
		if err != nil {
			t.Error(err)
		}
		return blobs
	}
	t.Run("recorded by the first", func(t *testing.T) {
		d := openDB(t, t.TempDir())
		defer d.Close()
		err := d.WithPull(t.Context(), "second:1", never, func(second context.Context, p *Pull) error {
			err := d.WithPull(t.Context(), "first:1", never, func(ctx context.Context, first *Pull) error {
				p.documents, first.documents = []digest.Digest{digest.FromString("manifest")}, []digest.Digest{digest.FromString("manifest")}
				download(t, ctx, d, "manifest")
				if err := first.Wants(ctx, treeOf("manifest")); err != nil {
					return err
				}
				// The second one has found it finished a moment ago, and wants to record it.
				if err := d.RecordBlobs(second, p.documents); err != nil || !slices.Contains(leaseOf(t, d, p), p.documents[0]) {
					t.Errorf("the second pull has not leased what the first has recorded: %v", err)
				}
				return errs.Invalid
			})
			if !errors.Is(err, errs.Invalid) {
				t.Error(err)
			}
			has(t, d, "manifest")
			return p.Wants(second, treeOf("manifest"))
		})
		if err != nil {
			t.Error(err)
		}
	})
	t.Run("wanted by one that fails", func(t *testing.T) {
		d := openDB(t, t.TempDir())
		defer d.Close()
		err := d.WithPull(t.Context(), "owner:1", never, func(ctx context.Context, p *Pull) error {
			if err := p.noting(func(ctx context.Context, _ imagespec.Descriptor) error { download(t, ctx, d, "manifest"); return nil })(ctx, blobOf("manifest")); err != nil {
				return err
			}
			err := d.WithPull(t.Context(), "other:1", never, func(ctx context.Context, other *Pull) error {
				return other.noting(func(context.Context, imagespec.Descriptor) error { return errs.Invalid })(ctx, blobOf("manifest"))
			})
			if !errors.Is(err, errs.Invalid) || recorded(t, d, "manifest") {
				t.Errorf("a pull that has failed has recorded the document of another: %v", err)
			}
			return p.Wants(ctx, treeOf("manifest"))
		})
		if err != nil {
			t.Error(err)
		}
		if len(d.finished.owners) > 0 || len(d.finished.moving) > 0 {
			t.Errorf("%v and %v are left of ended pulls", d.finished.owners, d.finished.moving)
		}
	})
}

// TestABlobThatAnImportHasRecorded: a download of the same blob that ends later leaves its file, which is synced.
func TestABlobThatAnImportHasRecorded(t *testing.T) {
	d := openDB(t, t.TempDir())
	defer d.Close()
	err := d.WithPull(t.Context(), "app:1", func(error) bool { return false }, func(ctx context.Context, _ *Pull) error {
		w, err := d.BeginDownload(ctx, blobOf("manifest"))
		if err != nil {
			return err
		}
		return d.WithLease(t.Context(), func(imported context.Context) error {
			fetched(t, imported, d, "manifest")
			before, err := os.Stat(d.BlobPath(digest.FromString("manifest")))
			if err != nil {
				return err
			}
			if _, err := io.WriteString(w, "manifest"); err != nil {
				return err
			}
			if err := errors.Join(w.Commit(ctx, 0, digest.FromString("manifest")), w.Close()); err != nil {
				return err
			}
			after, err := os.Stat(d.BlobPath(digest.FromString("manifest")))
			if err != nil || !os.SameFile(before, after) {
				t.Errorf("the download has put its file in the place of the one that is synced: %v", err)
			}
			return nil
		})
	})
	if err != nil {
		t.Error(err)
	}
	if ingests, err := os.ReadDir(filepath.Join(d.ContentDir(), "ingest")); err != nil || len(ingests) > 0 {
		t.Errorf("the download has left %v, %v", ingests, err)
	}
}

// TestAnImportAwaitsAFile: a blob whose file is being moved is neither recorded nor missed.
func TestAnImportAwaitsAFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f finished
		go func() {
			if err := f.move("blob", 1, "", func() error { time.Sleep(time.Second); return nil }); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		if f.has("blob") || !f.keeps("blob") {
			t.Error("a file that is not in its place can be recorded, or is collected")
		}
		begun := time.Now()
		f.await("blob")
		if took := time.Since(begun); took != time.Second || !f.has("blob") {
			t.Errorf("after %v the blob is not finished", took)
		}
		f.await("blob")
	})
}

// TestRecordWhileOthersFinish: a pull records the layers that it shares with another one, which is moving their files to their
// place.
func TestRecordWhileOthersFinish(t *testing.T) {
	d := openDB(t, t.TempDir())
	defer d.Close()
	var layers []string
	for i := range 300 {
		layers = append(layers, fmt.Sprint("layer ", i))
	}
	never := func(error) bool { return false }
	ended, ready := make(chan struct{}), make(chan struct{})
	end := sync.OnceFunc(func() { close(ended) })
	var recording sync.WaitGroup
	defer recording.Wait()
	defer end()
	err := d.WithPull(t.Context(), "app:1", never, func(ctx context.Context, p *Pull) error {
		if err := p.Wants(ctx, treeOf("manifest", layers...)); err != nil {
			return err
		}
		recording.Go(func() {
			err := d.WithPull(t.Context(), "other:1", never, func(ctx context.Context, p *Pull) error {
				if err := p.Wants(ctx, treeOf("manifest", layers...)); err != nil {
					return err
				}
				close(ready)
				for {
					if err := p.Record(ctx); err != nil {
						return err
					}
					select {
					case <-ended:
						return nil
					default:
					}
				}
			})
			if err != nil {
				t.Error(err)
			}
		})
		select {
		case <-ready:
		case <-time.After(10 * time.Second):
			t.Error("the other pull does not begin")
		}
		for _, layer := range layers {
			download(t, ctx, d, layer)
		}
		end()
		var blobs []digest.Digest
		for _, layer := range layers {
			blobs = append(blobs, digest.FromString(layer))
		}
		return d.RecordBlobs(ctx, blobs)
	})
	if err != nil {
		t.Error(err)
	}
}

// TestALayerThatCannotBeRecorded: no pull takes it for recorded, and nothing is left of it.
func TestALayerThatCannotBeRecorded(t *testing.T) {
	d := openDB(t, t.TempDir())
	defer d.Close()
	err := d.WithPull(t.Context(), "app:1", func(error) bool { return false }, func(ctx context.Context, p *Pull) error {
		download(t, ctx, d, "manifest")
		if err := p.Wants(ctx, treeOf("manifest", "one", "two")); err != nil {
			return err
		}
		download(t, ctx, d, "one")
		download(t, ctx, d, "two")
		if err := os.Remove(d.BlobPath(digest.FromString("one"))); err != nil {
			return err
		}
		both := []digest.Digest{digest.FromString("one"), digest.FromString("two")}
		if err := d.RecordBlobs(ctx, both); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a layer without a file is recorded: %v", err)
		}
		err := d.RecordBlobs(ctx, both[1:]) // that of another pull
		if !errors.Is(err, errs.Unavailable) {
			t.Errorf("a layer that was not recorded: %v", err)
		}
		return err
	})
	if !errors.Is(err, errs.Unavailable) {
		t.Fatal(err)
	}
	d.Collect(WithNamespace(t.Context()))
	has(t, d)
}

// TestAFileWithoutARecord: a file that a pull has left without a record is used if it is the blob, and replaced if not.
func TestAFileWithoutARecord(t *testing.T) {
	d := openDB(t, t.TempDir())
	defer d.Close()
	err := d.WithPull(t.Context(), "app:1", func(error) bool { return false }, func(ctx context.Context, p *Pull) error {
		download(t, ctx, d, "manifest")
		if err := p.Wants(ctx, treeOf("manifest", "whole", "other")); err != nil {
			return err
		}
		for text, data := range map[string]string{"whole": "whole", "other": "wrong"} {
			if err := os.WriteFile(d.BlobPath(digest.FromString(text)), []byte(data), 0o600); err != nil {
				return err
			}
		}
		if _, err := d.BeginDownload(ctx, blobOf("whole")); !errdefs.IsAlreadyExists(err) {
			t.Errorf("a whole file is fetched again: %v", err)
		}
		download(t, ctx, d, "other")
		err := d.RecordBlobs(ctx, []digest.Digest{digest.FromString("whole"), digest.FromString("other")})
		has(t, d, "manifest", "other", "whole")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestDownloadsThatNothingContinues: the collector removes them after a day, and none that is under way.
func TestDownloadsThatNothingContinues(t *testing.T) {
	d := openDB(t, t.TempDir())
	defer d.Close()
	ctx := WithNamespace(t.Context())
	past := time.Now().Add(-2 * leftoverTime)
	for _, text := range []string{"new", "old", "under way"} {
		w, err := d.BeginDownload(ctx, blobOf(text))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.BeginDownload(ctx, blobOf(text)); !errdefs.IsUnavailable(err) {
			t.Errorf("a second download at a time: %v", err)
		}
		if text == "under way" {
			defer w.Close()
		} else if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if text != "new" {
			if err := os.Chtimes(d.ingestDir(downloadRef+digest.FromString(text).String())+"/"+partfile.DataName, past, past); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := d.collect(ctx); err != nil { // nothing else is to be collected
		t.Fatal(err)
	}
	all, err := d.ingests()
	var left []string
	for _, one := range all {
		left = append(left, one.ref)
	}
	slices.Sort(left)
	want := []string{downloadRef + digest.FromString("new").String(), downloadRef + digest.FromString("under way").String()}
	slices.Sort(want)
	if err != nil || !slices.Equal(left, want) {
		t.Errorf("left %q, %v, want %q", left, err, want)
	}
}

// TestAFileThatTheCollectorRemoves: a pull does not take for finished a file that the collector removes while the pull reads it.
func TestAFileThatTheCollectorRemoves(t *testing.T) {
	d := openDB(t, t.TempDir())
	defer d.Close()
	d.collection.Lock() // a collection is under way
	there := make(chan bool)
	go func() { there <- d.addIfThere(digest.FromString("gone"), 4) }()
	d.collection.Unlock()
	if <-there || d.finished.has(digest.FromString("gone")) {
		t.Error("a blob without a file is finished")
	}
}

// TestALayerAfterTheRecords: a layer whose download ends after its image was recorded belongs to the image, and goes with it.
func TestALayerAfterTheRecords(t *testing.T) {
	d := openDB(t, t.TempDir())
	defer d.Close()
	image := treeOf("manifest", "late")
	image.Target.MediaType = imagespec.MediaTypeImageManifest
	image.Image.RootFS.DiffIDs = []digest.Digest{digest.FromString("a layer")}
	err := d.WithPull(t.Context(), "app:1", func(error) bool { return true }, func(ctx context.Context, p *Pull) error {
		fetched(t, ctx, d, "manifest", "config of manifest")
		if err := p.Wants(ctx, image); err != nil {
			return err
		}
		if err := d.WriteRecords(ctx, image, []string{"app:1"}, nil, false, []string{"proxy"}); err != nil {
			return err
		}
		download(t, ctx, d, "late")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx := WithNamespace(t.Context())
	d.Collect(ctx)
	if !recorded(t, d, "late") || d.finished.has(digest.FromString("late")) {
		t.Error("the database does not know the layer")
	}
	if err := d.DeleteRecords(ctx, map[string]bool{"app:1": true}, ""); err != nil {
		t.Fatal(err)
	}
	d.Collect(ctx)
	has(t, d)
}
