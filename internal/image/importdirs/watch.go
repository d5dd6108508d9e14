package importdirs

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

const (
	// burst is the time between a change in a directory and the look at it.
	burst = 200 * time.Millisecond
	// watchless is how often the directories are looked at if they cannot be watched.
	watchless = 30 * time.Second
)

// watch calls a function when something changes in directories.
type watch struct {
	log   *slog.Logger
	files *sysfile.FileWatch // nil if the host has no watch left
	// placed are the directories that are watched, which are their own keys.
	placed map[string]bool
	end    context.CancelFunc
	ended  chan struct{}
	failed atomic.Bool
}

func newWatch(changed func(), log *slog.Logger) *watch {
	ctx, end := context.WithCancel(context.Background())
	w := &watch{log: log, placed: map[string]bool{}, end: end, ended: make(chan struct{})}
	var err error
	if w.files, err = sysfile.NewFileWatch(); err != nil {
		w.fail(err)
		close(w.ended)
		return w
	}
	go func() {
		defer close(w.ended)
		errs.Protect("watch of directories with archives of images", func() {
			for {
				if _, err := w.files.Next(ctx); err != nil {
					if ctx.Err() == nil {
						w.fail(err)
						changed()
					}
					return
				}
				changed()
			}
		})
	}()
	return w
}

// works reports whether changes are noticed. A nil watch notices none.
func (w *watch) works() bool { return w != nil && !w.failed.Load() }

func (w *watch) fail(err error) {
	if !w.failed.Swap(true) {
		w.log.Warn("cannot watch the directories of image.import_dirs; berth looks at them every "+watchless.String(), "error", err)
	}
}

// place watches directories, or the nearest one above that exists, and nothing else.
func (w *watch) place(dirs []string) {
	if w == nil || w.files == nil {
		return
	}
	wanted := map[string]bool{}
	for _, dir := range dirs {
		wanted[nearest(dir)] = true
	}
	// Before others are added: two names may lead to one directory, which has one watch.
	for dir := range w.placed {
		if !wanted[dir] {
			w.files.Remove(dir)
			delete(w.placed, dir)
		}
	}
	for _, dir := range dirs {
		w.placeOne(dir)
	}
}

// placeOne watches a directory. Between the look for the nearest one and the watch another may have appeared.
func (w *watch) placeOne(dir string) {
	for range 100 {
		at := nearest(dir)
		if err := w.files.AddDir(at, at); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.fail(err)
			return
		}
		w.placed[at] = true
		if nearest(dir) == at {
			return
		}
	}
}

// nearest returns the directory, or the nearest one above that exists.
func nearest(dir string) string {
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return dir
		}
	}
	return dir
}

func (w *watch) close() {
	if w == nil {
		return
	}
	w.end()
	<-w.ended
	if w.files != nil {
		_ = w.files.Close() // it is not used any more
	}
}
