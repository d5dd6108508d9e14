package dockerstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

const (
	// usageLife is how long an engine's figures are used before they are read again.
	usageLife = time.Minute
	// usageShare bounds the share of time in which an engine adds up: one in this many.
	usageShare = 20
	// usagePatience is how long a caller waits for the first figures.
	usagePatience = 5 * time.Second
)

// usage holds the latest figures of the engine's disk.
type usage struct {
	mu sync.Mutex
	// latest is nil before the first figures.
	latest *figures
	// ready is closed when the first figures are there.
	ready chan struct{}
	// reading is true while figures are read; not before next are they read again.
	reading bool
	next    time.Time
}

type figures struct {
	root               string
	images, containers int64
	at                 time.Time
}

// Usage implements image.Store. The engine walks its directories to add up, which can take
// minutes: Usage returns the latest figures, with their time, and has them read again in the
// background. An engine does not count inodes: those of both lists are all that are in use on
// the file system.
func (s *Images) Usage(ctx context.Context) (image.DiskUsage, error) {
	latest, err := s.latestFigures(ctx)
	if err != nil {
		return image.DiskUsage{}, fmt.Errorf("cannot add up what images take: %w", err)
	}
	inodes, err := usedInodes(latest.root)
	if err != nil {
		return image.DiskUsage{}, err
	}
	of := func(bytes, inodes int64) []image.Usage {
		return []image.Usage{{Mountpoint: latest.root, Bytes: bytes, Inodes: inodes, At: latest.at}}
	}
	return image.DiskUsage{Images: of(latest.images, inodes), Containers: of(latest.containers, 0)}, nil
}

// latestFigures returns the figures, and starts to read new ones if these are old.
func (s *Images) latestFigures(ctx context.Context) (figures, error) {
	if latest, ok := s.figures(); ok {
		return latest, nil
	}
	select {
	case <-s.usage.ready:
	case <-time.After(usagePatience):
	case <-ctx.Done():
		return figures{}, context.Cause(ctx)
	}
	if latest, ok := s.figures(); ok {
		return latest, nil
	}
	return s.estimate(ctx)
}

func (s *Images) figures() (figures, bool) {
	s.usage.mu.Lock()
	defer s.usage.mu.Unlock()
	if !s.usage.reading && time.Now().After(s.usage.next) {
		s.usage.reading = true
		s.background.Go(s.readFigures)
	}
	if s.usage.latest == nil {
		return figures{}, false
	}
	return *s.usage.latest, true
}

// readFigures reads the figures. Old ones stay when it cannot.
func (s *Images) readFigures(ctx context.Context) {
	began := time.Now()
	read, err := s.addUp(ctx)
	took := time.Since(began)
	s.usage.mu.Lock()
	defer s.usage.mu.Unlock()
	s.usage.reading = false
	s.usage.next = time.Now().Add(max(usageLife, usageShare*took))
	if err != nil {
		if s.usage.latest == nil {
			s.usage.next = time.Time{} // the next caller needs them
		}
		if ctx.Err() == nil {
			s.log.Warn("cannot read what images take on the engine's disk", "error", err)
		}
		return
	}
	if s.usage.latest == nil {
		close(s.usage.ready)
	}
	s.usage.latest = &read
}

func (s *Images) addUp(ctx context.Context) (figures, error) {
	info, err := s.client.Info(ctx, client.InfoOptions{})
	if err != nil {
		return figures{}, err
	}
	disk, err := s.client.DiskUsage(ctx, client.DiskUsageOptions{Images: true, Containers: true})
	if err != nil {
		return figures{}, err
	}
	return figures{root: info.Info.DockerRootDir, images: disk.Images.TotalSize, containers: disk.Containers.TotalSize, at: time.Now()}, nil
}

// estimate is for callers who come before the first figures. It counts layers that images share
// several times.
func (s *Images) estimate(ctx context.Context) (figures, error) {
	info, err := s.client.Info(ctx, client.InfoOptions{})
	if err != nil {
		return figures{}, err
	}
	summaries, err := s.summaries(ctx)
	if err != nil {
		return figures{}, err
	}
	estimated := figures{root: info.Info.DockerRootDir, at: time.Now()}
	for _, summary := range summaries {
		estimated.images += summary.Size
	}
	return estimated, nil
}

func usedInodes(root string) (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil {
		return 0, fmt.Errorf("cannot look at the engine's directory %s: %w: %w", root, err, errs.Unavailable)
	}
	return int64(fs.Files - min(fs.Ffree, fs.Files)), nil
}
