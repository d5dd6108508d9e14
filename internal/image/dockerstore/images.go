// Package dockerstore is an image store over a Docker Engine. The engine holds the images: this
// package finds, pulls, names, removes, imports and exports them through the engine's API. It
// keeps nothing but the list of pinned images, which an engine does not have.
//
// It works with both image stores of an engine. With a graph driver the id of an image is the
// digest of its config, and with the containerd image store that of its manifest or index.
package dockerstore

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/platforms"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/background"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/names"
	"github.com/berthrun/berth/internal/image/progress"
)

// PullRules say how images are pulled. What else there is to configure is the engine's:
// mirrors, concurrent downloads, insecure registries.
type PullRules struct {
	// NoProgressTimeout ends a pull whose registry sends nothing; 5 minutes if 0.
	NoProgressTimeout time.Duration
}

const defaultNoProgressTimeout = 5 * time.Minute

// Options of a store.
type Options struct {
	// Client calls the engine. The caller closes it, after the store.
	Client *api.Client
	// PullRules hold until SetPullRules.
	PullRules
	// Pinned are references of images that are pinned whenever the engine has them. Others
	// are pinned by their import.
	Pinned []string
	// Dir is a directory on disk, with room for an archive. It belongs to this store alone.
	Dir string
	// Observer counts pulls, nil for nothing.
	Observer image.PullObserver
	// Jobs shows pulls, nil for nobody.
	Jobs image.Jobs
	// Log is slog's default when nil.
	Log *slog.Logger
}

// Images is the image store of an engine. It implements image.Store and image.Catalog. Errors
// have the kinds of image.Store; they are Unavailable when the engine does not answer.
type Images struct {
	client     *api.Client
	dir        string
	log        *slog.Logger
	platform   platforms.MatchComparer
	rules      atomic.Pointer[PullRules]
	pulls      progress.Pulls
	background *background.Group
	pins       pins
	removals   sync.Mutex
	usage      usage

	// mu guards details.
	mu sync.Mutex
	// details are what a list needs of images beside their summary, by id.
	details map[string]details
}

var (
	_ image.Store   = (*Images)(nil)
	_ image.Catalog = (*Images)(nil)
)

// New returns the store of an engine. It does not call the engine. It removes what a killed
// import has left in Dir.
func New(opts Options) (*Images, error) {
	if !filepath.IsAbs(opts.Dir) {
		return nil, fmt.Errorf("directory of the image store %q: want an absolute path: %w", opts.Dir, errs.Invalid)
	}
	s := &Images{
		client: opts.Client, dir: opts.Dir, log: cmp.Or(opts.Log, slog.Default()),
		platform: platforms.Default(), background: background.NewGroup(), details: map[string]details{},
	}
	s.pulls.Observer, s.pulls.Jobs = opts.Observer, opts.Jobs
	database.ForwardLibraryLog(s.log) // imports stage content with containerd's libraries
	s.usage.ready = make(chan struct{})
	s.SetPullRules(opts.PullRules)
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the directory of the image store: %w", err)
	}
	if err := s.dropStagings(); err != nil {
		return nil, fmt.Errorf("cannot remove what an import has left: %w", err)
	}
	always := map[string]bool{}
	for _, ref := range opts.Pinned {
		named, err := names.Parse(ref)
		if err != nil {
			return nil, err
		}
		always[named.String()] = true
	}
	s.pins.always = always
	if err := s.loadPins(); err != nil {
		return nil, err
	}
	return s, nil
}

// SetPullRules makes other rules hold for pulls that begin from now on.
func (s *Images) SetPullRules(rules PullRules) {
	rules.NoProgressTimeout = cmp.Or(rules.NoProgressTimeout, defaultNoProgressTimeout)
	s.rules.Store(&rules)
}

// Close ends what the store does at the moment, and waits for it.
func (s *Images) Close() error {
	s.background.Close()
	return nil
}

// dropStagings removes the directories of imports that ended with their process.
func (s *Images) dropStagings() error {
	left, err := filepath.Glob(filepath.Join(s.dir, stagingPrefix+"*"))
	for _, dir := range left {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}
