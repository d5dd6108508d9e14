//go:build integration

package local

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// A slow archive, from a disk that hangs or a client that stops, delays only its own import. Pulls,
// other imports, removals and the starts of containers continue.
func TestStuckImportDelaysNoOther(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	r := &imagetest.Registry{}
	host := serve(t, r)
	r.Push("small", "1", build(t, layersOf(2, "gzip")))
	s := open(t, testConfig(t))

	large := layersOf(4, "")
	large.Name = "large:1"
	archive := archiveOf(t, large).Bytes()
	from, to := io.Pipe()
	// The store does not close before the import ends, even if the test has failed.
	defer func() { _ = to.CloseWithError(io.ErrClosedPipe) }()
	half := make(chan struct{})
	rest := make(chan struct{})
	written := make(chan error, 1)
	go func() {
		_, err := to.Write(archive[:len(archive)/2])
		close(half)
		<-rest
		if err == nil {
			_, err = to.Write(archive[len(archive)/2:])
		}
		written <- errors.Join(err, to.Close())
	}()
	imported := make(chan error, 1)
	go func() {
		_, err := s.Import(ctx, from, "", false, nil)
		_ = from.CloseWithError(io.ErrClosedPipe)
		imported <- err
	}()
	<-half // and the import waits for more

	id, err := s.Pull(ctx, host+"/small:1", image.Auth{}, nil)
	if err != nil {
		t.Fatalf("pull beside a stuck import: %v", err)
	}
	if _, err := s.Prepare(ctx, image.RootfsSpec{Key: "c", ImageID: id}); err != nil {
		t.Fatalf("root filesystem beside a stuck import: %v", err)
	}
	if err := s.Release(ctx, "c"); err != nil {
		t.Error(err)
	}
	other := layersOf(1, "")
	other.Name = "other:1"
	list, err := s.Import(ctx, archiveOf(t, other), "", false, nil)
	if err != nil {
		t.Fatalf("import beside a stuck one: %v", err)
	}
	if err := s.Remove(ctx, list[0].ID); err != nil { // garbage collection keeps partial content
		t.Error(err)
	}
	select {
	case err := <-imported:
		t.Fatalf("the import did not wait for its archive: %v", err)
	default:
	}
	close(rest)
	if err := errors.Join(<-written, <-imported); err != nil {
		t.Fatalf("the slow import: %v", err)
	}
	if _, err := s.Get(ctx, "large:1"); err != nil {
		t.Error(err)
	}
}
