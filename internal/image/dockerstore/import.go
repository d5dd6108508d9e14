package dockerstore

import (
	"context"
	"errors"
	"fmt"
	"io"

	containerdarchive "github.com/containerd/containerd/v2/core/images/archive"
	"github.com/distribution/reference"
	imageapi "github.com/moby/moby/api/types/image"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/archive"
	"github.com/berthrun/berth/internal/image/names"
	"github.com/berthrun/berth/internal/image/progress"
)

// Import implements image.Store. It checks the whole archive before the engine gets it, in a
// form that all engines read. A graph driver gives images of archives no digest references.
func (s *Images) Import(ctx context.Context, stream io.Reader, name string, pin bool, report func(image.Progress)) (list []image.Image, err error) {
	var fallback reference.Named
	if name != "" {
		if fallback, err = names.Parse(name); err != nil {
			return nil, err
		}
	}
	ctx, end, err := s.background.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot import the archive: %w", errs.OfDisk(err))
		}
	}()
	st, err := s.newStaging()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, st.remove()) }()
	m := progress.NewMeter(report)
	found, err := s.stage(ctx, st, stream, fallback, m)
	if err != nil {
		return nil, err
	}
	if err := s.load(ctx, st, found, m); err != nil {
		return nil, err
	}
	return s.imported(ctx, found, pin, m)
}

// stage reads the archive and checks all its images.
func (s *Images) stage(ctx context.Context, st *staging, stream io.Reader, fallback reference.Named, m *progress.Meter) ([]*staged, error) {
	info, err := s.client.Info(ctx, client.InfoOptions{})
	if err != nil {
		return nil, err
	}
	images, err := st.read(ctx, stream, m)
	if err != nil {
		return nil, err
	}
	if err := archive.NameAll(images, fallback); err != nil {
		return nil, err
	}
	var all []*staged
	for _, found := range images {
		checked, err := st.check(ctx, s, found)
		if err != nil {
			return nil, err
		}
		if !hasContainerdStore(info.Info.DriverStatus) {
			if err := st.uncompress(ctx, checked); err != nil {
				return nil, err
			}
		}
		all = append(all, checked)
	}
	return all, nil
}

// hasContainerdStore reports whether the engine's images are in the containerd image store.
func hasContainerdStore(status [][2]string) bool {
	for _, row := range status {
		if row == [2]string{"driver-type", "io.containerd.snapshotter.v1"} {
			return true
		}
	}
	return false
}

// load sends the images to the engine.
func (s *Images) load(ctx context.Context, st *staging, images []*staged, m *progress.Meter) error {
	var manifests []containerdarchive.ExportOpt
	var total int64
	for _, img := range images {
		var named []string
		for _, name := range img.Names {
			named = append(named, name.String())
		}
		manifests = append(manifests, containerdarchive.WithManifest(img.tree.Manifest, named...))
		total += img.tree.Size()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from, to := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := containerdarchive.Export(ctx, st.content, to, manifests...)
		_ = to.CloseWithError(err) // it never fails
		written <- err
	}()
	m.Stage(progress.Unpacking, total)
	err := s.sendArchive(ctx, &counted{from, m.Unpack})
	// The engine may have stopped to read.
	_ = from.CloseWithError(errEngineDone)
	if writeErr := <-written; writeErr != nil && !errors.Is(writeErr, errEngineDone) && !errors.Is(writeErr, io.ErrClosedPipe) {
		return fmt.Errorf("cannot send the images to the engine: %w", writeErr)
	}
	return err
}

// errEngineDone is what the writer of an archive gets when the engine has answered already.
var errEngineDone = errors.New("the engine has answered")

// sendArchive sends one archive and reads the answer to its end.
func (s *Images) sendArchive(ctx context.Context, from io.Reader) error {
	answer, err := s.client.ImageLoad(ctx, from)
	switch {
	case errors.Is(err, errs.Unavailable):
		return err
	case err != nil:
		return withKind(err, 0)
	}
	defer answer.Close()
	return readMessages(answer, func(jsonstream.Message) {})
}

// counted counts what is read.
type counted struct {
	io.Reader
	got func(int64)
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.got(int64(n))
	return n, err
}

// imported finds the loaded images, and pins them.
func (s *Images) imported(ctx context.Context, images []*staged, pin bool, m *progress.Meter) ([]image.Image, error) {
	var found []*imageapi.InspectResponse
	var ids []string
	for _, img := range images {
		at, err := s.findLoaded(ctx, img)
		if err != nil {
			return nil, err
		}
		found, ids = append(found, at), append(ids, at.ID)
	}
	if pin {
		if err := s.pin(ctx, ids); err != nil {
			return nil, err
		}
	}
	m.Stage(progress.Done, 0)
	var list []image.Image
	for _, at := range found {
		list = append(list, s.imageOf(at))
	}
	return list, nil
}

// findLoaded finds an image by what either kind of image store makes its id.
func (s *Images) findLoaded(ctx context.Context, img *staged) (*imageapi.InspectResponse, error) {
	for _, id := range []string{img.tree.Config.Digest.String(), img.tree.Manifest.Digest.String()} {
		found, err := s.inspect(ctx, id)
		if err != nil || found != nil {
			return found, err
		}
	}
	return nil, fmt.Errorf("image %s: the engine has loaded it and does not have it: %w", img, errs.NotFound)
}
