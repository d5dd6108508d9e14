// Package users reads the files of images that say who their users are. A Docker Engine reads them,
// too, but it looks up numbers as names, and it leaves out the groups of a user whose group a request
// names.
package users

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"sync"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/engine/docker/faults"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
)

// Files are the content of an image's /etc/passwd and /etc/group, nil for a file that it does not
// have.
type Files struct{ Passwd, Group []byte }

// maxImages bounds how many images' files are kept.
const maxImages = 256

// Reader reads the files of images and keeps them: an image does not change. All methods are safe
// for concurrent use.
type Reader struct {
	client *api.Client

	mu   sync.Mutex
	kept map[string]Files
}

// New returns a Reader that uses c.
func New(c *api.Client) *Reader { return &Reader{client: c, kept: map[string]Files{}} }

// Kept returns the files of an image if they were read before.
func (r *Reader) Kept(imageID string) (files Files, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	files, ok = r.kept[imageID]
	return files, ok
}

// Bare is the request for a container from which Read reads the files of an image. It has nothing of a
// pod: no mounts, which would be read in the place of the image's files, and no network. It is never
// started. The labels and the name are those of the container that the files are read for, so that
// what a crash leaves of it is removed with that one.
func Bare(name, imageID string, labels map[string]string) client.ContainerCreateOptions {
	return client.ContainerCreateOptions{
		Name: name,
		// A program and a directory of the request replace those of the image, which may be bad.
		Config:     &container.Config{Image: imageID, Labels: labels, Entrypoint: []string{"/never-started"}, WorkingDir: "/"},
		HostConfig: &container.HostConfig{NetworkMode: "none", LogConfig: container.LogConfig{Type: "none"}},
	}
}

// Read reads the files of an image from a container of it that Bare describes, and keeps them.
// engineID is the Docker Engine's id of that container.
func (r *Reader) Read(ctx context.Context, imageID, engineID string) (files Files, err error) {
	// The engine itself opens both files when it sends one of them, and when it starts the container. Of a
	// pipe it would wait for a writer, and with it each call about the container.
	for _, path := range []string{"/etc/passwd", "/etc/group"} {
		if err := r.check(ctx, engineID, path); err != nil {
			return Files{}, err
		}
	}
	if files.Passwd, err = r.file(ctx, engineID, "/etc/passwd"); err != nil {
		return Files{}, err
	}
	if files.Group, err = r.file(ctx, engineID, "/etc/group"); err != nil {
		return Files{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.kept) >= maxImages {
		for id := range maps.Keys(r.kept) { // any of them
			delete(r.kept, id)
			break
		}
	}
	r.kept[imageID] = files
	return files, nil
}

// maxLinks bounds how many links a file of an image may lead through.
const maxLinks = 8

// check refuses a pipe or a device in the place of a file. Kind Invalid.
func (r *Reader) check(ctx context.Context, engineID, path string) error {
	const others = fs.ModeNamedPipe | fs.ModeDevice | fs.ModeCharDevice | fs.ModeSocket
	for range maxLinks {
		got, err := r.client.ContainerStatPath(ctx, engineID, client.ContainerStatPathOptions{Path: path})
		if errors.Is(err, errs.NotFound) || err != nil && errs.Kind(err) == nil {
			// The answer has no text that says what the engine cannot look at, a link to itself for
			// example. It cannot copy that either, and says why then.
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot look at %s of the image: %w", path, err)
		}
		if got.Stat.Mode&others != 0 {
			return fmt.Errorf("%s of the image is a pipe or a device, and must be a file: %w", path, errs.Invalid)
		}
		if got.Stat.Mode&fs.ModeSymlink == 0 || got.Stat.LinkTarget == "" {
			return nil
		}
		path = got.Stat.LinkTarget // from the root of the container
	}
	return nil
}

// file returns the content of a file of a container, nil if it has something else in its place. It
// reads one byte more than the longest file of users, so that a longer one is found out.
func (r *Reader) file(ctx context.Context, engineID, path string) ([]byte, error) {
	for range maxLinks {
		got, err := r.client.CopyFromContainer(ctx, engineID, client.CopyFromContainerOptions{SourcePath: path})
		if errors.Is(err, errs.NotFound) || faults.IsLinkLoop(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read %s of the image: %w", path, err)
		}
		content, link, err := first(got)
		if err != nil {
			return nil, fmt.Errorf("cannot read %s of the image: %w", path, err)
		}
		if !link {
			return content, nil
		}
		path = got.Stat.LinkTarget // from the root of the container
	}
	return nil, nil
}

// first reads the only entry of an archive. link is true for a symbolic link.
func first(got client.CopyFromContainerResult) (content []byte, link bool, err error) {
	defer got.Content.Close()
	entries := tar.NewReader(got.Content)
	header, err := entries.Next()
	switch {
	case err != nil:
		return nil, false, err
	case header.Typeflag == tar.TypeSymlink:
		return nil, got.Stat.LinkTarget != "", nil
	case header.Typeflag != tar.TypeReg:
		return nil, false, nil
	}
	content, err = io.ReadAll(io.LimitReader(entries, ocispec.MaxUserFile+1))
	return content, false, err
}
