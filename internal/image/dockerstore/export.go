package dockerstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"

	imageapi "github.com/moby/moby/api/types/image"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/names"
)

// Export implements image.Store, as docker save does.
func (s *Images) Export(ctx context.Context, refs []string, to io.Writer) error {
	if len(refs) == 0 {
		return fmt.Errorf("cannot export: no image is named: %w", errs.Invalid)
	}
	var exported []string
	for _, ref := range refs {
		found, err := s.find(ctx, ref)
		if err != nil {
			return fmt.Errorf("cannot export %s: %w", ref, err)
		}
		exported = append(exported, exportedNames(ref, found)...)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The engine finds all of them before it writes the first byte.
	archive, err := s.client.ImageSave(ctx, exported)
	if err != nil {
		return fmt.Errorf("cannot export images: %w", err)
	}
	defer archive.Close()
	from := &readErrors{Reader: archive}
	if _, err := io.Copy(to, from); err != nil {
		if errors.Is(from.err, io.ErrUnexpectedEOF) || errors.Is(from.err, syscall.ECONNRESET) {
			err = closedEarly(err)
		}
		return fmt.Errorf("cannot export images: %w", err)
	}
	return nil
}

// exportedNames are the names that an image is exported by: that of ref, or all where ref is
// none. One without a name is exported by its id.
func exportedNames(ref string, found *imageapi.InspectResponse) []string {
	tags := fullTags(found.RepoTags)
	if named, err := names.Parse(ref); err == nil && slices.Contains(tags, named.String()) {
		return []string{named.String()}
	}
	if len(tags) == 0 {
		return []string{found.ID}
	}
	return tags
}

// readErrors distinguishes a fault of the engine from one of the caller's writer.
type readErrors struct {
	io.Reader
	err error
}

func (r *readErrors) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}
