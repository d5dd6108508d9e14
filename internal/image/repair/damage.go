// Package repair rebuilds an image store whose databases cannot be read.
//
// It rebuilds the databases from the files beside them: content has the images, names.json their
// names, and each layer's directory a label with the layer's id. It moves both old databases and
// all that is not in use to
//
//	Root/quarantine/<time>/  metadata.db, snapshots.db    as they were found
//	                         layers-<n>/                  directories of layers that nothing names
//	                         blobs/                       content of no image
//	                         report.json                  what was found, and what is missing
//
// where they stay until the administrator removes them. It removes nothing only because a new or
// empty database does not list it. Running containers keep their mounts, wherever their layers are
// moved to.
//
// Root/rebuilding names the directory during a rebuild, so that the next start repeats a rebuild
// that was interrupted.
package repair

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/dbcheck"
	"github.com/berthrun/berth/internal/image/helper/program"
	"github.com/berthrun/berth/internal/image/lost"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

const reportName = "report.json"

// Repairer checks the databases of a store and rebuilds them.
type Repairer struct {
	Paths database.Paths
	// Helper is the program in which databases are checked.
	Helper program.Program
	// Lost gets the images that a rebuild cannot restore.
	Lost *lost.List
	Log  *slog.Logger
}

// QuarantineDir is the directory for what a rebuild sets aside.
func (r Repairer) QuarantineDir() string { return filepath.Join(r.Paths.Root, "quarantine") }

func (r Repairer) rebuildingPath() string { return filepath.Join(r.Paths.Root, "rebuilding") }

// Rebuilding is a rebuild in progress: where the old databases and layers are, and the reason.
type Rebuilding struct {
	Dir    string `json:"dir"`
	Reason string `json:"reason"`
}

// report is what a rebuild has found.
type report struct {
	At     time.Time `json:"at"`
	Reason string    `json:"reason"`
	// Images is the number of restored images, Nameless of those without their names.
	Images   int `json:"images"`
	Nameless int `json:"nameless"`
	// Layers is the number of directories that are in use again.
	Layers int `json:"layers"`
	// Lost are the names whose images could not be restored, with the reason.
	Lost []string `json:"lost,omitempty"`
	// Blobs and Directories are the numbers of those that were set aside.
	Blobs       int `json:"blobs"`
	Directories int `json:"directories"`
	// Foreign are objects that were in the place of others of the store. Only they are set aside.
	Foreign []string `json:"foreign,omitempty"`
}

// text says what was found. losses is a part of it.
func (r report) text(dir, losses string) string {
	if len(r.Foreign) > 0 {
		return fmt.Sprintf("the image store had other objects in the place of its own, which were set aside unread: %s; what was found lies in %s: remove it after you have looked at it", strings.Join(r.Foreign, "; "), dir)
	}
	text := fmt.Sprintf("the image store's database was damaged (%s) and was made again from what lies beside it: %d images are there again", r.Reason, r.Images)
	if r.Nameless > 0 {
		text += fmt.Sprintf(", %d of them without names, which come with the next pull", r.Nameless)
	}
	return text + losses + fmt.Sprintf("; what was found lies in %s: remove it after you have looked at it and the containers of that time have ended", dir)
}

// losses name the lost images, at the time of the rebuild.
func (r report) losses() string {
	if len(r.Lost) == 0 {
		return ""
	}
	return ", these are lost; berth brings them back in the background if an archive of image.import_dirs or a registry has them, else pull or import them: " + strings.Join(r.Lost, "; ")
}

// IsDamage reports whether opening failed because of the content of the databases. An error of the
// kernel (a full disk, a missing permission) is no damage.
func IsDamage(err error) bool {
	if err == nil {
		return false
	}
	if errors.Is(err, dbcheck.ErrDamaged) {
		return true
	}
	var errno syscall.Errno
	ended := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	return !ended && !errors.As(err, &errno) && !errors.Is(err, errs.Unavailable) && !errors.Is(err, errs.Exhausted)
}

// Inspect reads both databases completely, except for those that are as Closed has left them.
// damage is why they cannot be used, err why Inspect could not read them.
func (r Repairer) Inspect(ctx context.Context) (damage, err error) {
	if data, err := os.ReadFile(r.rebuildingPath()); err == nil {
		var under Rebuilding
		if err := json.Unmarshal(data, &under); err != nil || under.Reason == "" {
			under.Reason = "an earlier rebuild was cut short"
		}
		return fmt.Errorf("%s: %w", under.Reason, dbcheck.ErrDamaged), nil
	}
	outcomes, err := r.inspectAll(ctx)
	if err != nil {
		return nil, err
	}
	for _, err := range outcomes {
		switch {
		case errors.Is(err, dbcheck.ErrDamaged):
			return err, nil
		case errors.Is(err, errs.Unavailable), ctx.Err() != nil:
			return nil, err
		case err != nil:
			r.Log.Warn("cannot check the image store's database; using it unchecked", "error", err)
		}
	}
	return nil, nil
}

// inspectAll checks both databases at the same time. It returns the outcome of each.
func (r Repairer) inspectAll(ctx context.Context) ([]error, error) {
	closed, paths := r.takeClosed(), r.databases()
	outcomes := make([]error, len(paths))
	var checks sync.WaitGroup
	defer checks.Wait()
	for i, path := range paths {
		info, err := os.Lstat(path)
		switch {
		case err == nil && info.Size() > 0:
			checks.Go(func() { outcomes[i] = r.inspectOne(ctx, closed, path, info) })
		case err != nil && !errors.Is(err, os.ErrNotExist):
			return nil, err
		case r.hasContent():
			outcomes[i] = fmt.Errorf("%s is missing or empty, though there are images: %w", path, dbcheck.ErrDamaged)
		}
	}
	return outcomes, nil
}

// inspectOne compares a database with what was noted of it, and reads one completely that was written to since. One that
// cannot be compared is read, which says why.
func (r Repairer) inspectOne(ctx context.Context, closed map[string]fileState, path string, info os.FileInfo) error {
	noted, ok := closed[path]
	now, err := stateOf(path, info)
	switch {
	case ok && err == nil && noted == now:
		return nil
	case ok && err == nil && noted.sameButContent(now):
		return fmt.Errorf("%s has other content than what berth has written: the disk has changed it: %w", path, dbcheck.ErrDamaged)
	}
	return dbcheck.Check(ctx, r.Helper, path)
}

// hasContent reports whether there is anything that a database would know of.
func (r Repairer) hasContent() bool {
	for _, pattern := range []string{filepath.Join(r.Paths.ContentDir(), "blobs", "*", "*"), filepath.Join(r.Paths.LayersDir(), "*")} {
		if found, err := filepath.Glob(pattern); err == nil && len(found) > 0 {
			return true
		}
	}
	return false
}

// SetAside moves both databases and the layers to the quarantine.
func (r Repairer) SetAside(ctx context.Context, damage error) (*Rebuilding, error) {
	under, err := r.beginRebuild(damage)
	if err != nil {
		return nil, err
	}
	if dbcheck.Check(ctx, r.Helper, r.Paths.SnapshotsFile()) == nil {
		if err := database.LabelLayers(ctx, r.Paths); err != nil {
			r.Log.Warn("cannot read all layers from their database; unpacking them again", "error", err)
		}
	}
	for from, to := range map[string]string{r.Paths.MetadataFile(): "metadata.db", r.Paths.SnapshotsFile(): "snapshots.db"} {
		to = filepath.Join(under.Dir, to)
		if _, err := os.Lstat(to); err == nil { // of an attempt that was interrupted
			err = os.Remove(from)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, err
			}
			continue
		}
		if err := errs.IgnoreNotExist(os.Rename(from, to)); err != nil {
			return nil, err
		}
	}
	for n := 0; ; n++ {
		to := filepath.Join(under.Dir, fmt.Sprintf("layers-%d", n))
		if _, err := os.Lstat(to); err == nil {
			continue
		}
		if err := errs.IgnoreNotExist(os.Rename(r.Paths.LayersDir(), to)); err != nil {
			return nil, err
		}
		return under, nil
	}
}

// Unfinished adds to the error of a rebuild what must not be deleted meanwhile: layers and databases of the store are in the
// quarantine until the next start has ended the rebuild.
func (r Repairer) Unfinished(err error) error {
	if _, statErr := os.Lstat(r.rebuildingPath()); err == nil || statErr != nil {
		return err
	}
	return fmt.Errorf("the next start continues the rebuild of the image store; until it has succeeded, delete nothing in %s, which has the layers of images and containers: %w", r.QuarantineDir(), err)
}

// beginRebuild makes the directory for what is set aside, or finds that of an attempt that was
// interrupted.
func (r Repairer) beginRebuild(damage error) (*Rebuilding, error) {
	if data, err := os.ReadFile(r.rebuildingPath()); err == nil {
		var under Rebuilding
		err := json.Unmarshal(data, &under)
		if err == nil && filepath.Dir(under.Dir) == r.QuarantineDir() && os.MkdirAll(under.Dir, 0o700) == nil {
			return &under, nil
		}
	}
	if err := os.MkdirAll(r.QuarantineDir(), 0o700); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(r.QuarantineDir(), time.Now().UTC().Format("20060102T150405Z-"))
	if err != nil {
		return nil, err
	}
	under := &Rebuilding{Dir: dir, Reason: strings.TrimSuffix(damage.Error(), ": "+dbcheck.ErrDamaged.Error())}
	data, err := json.Marshal(under)
	if err != nil {
		return nil, err
	}
	return under, sysfile.ReplaceSynced(r.rebuildingPath(), data)
}

// Notes returns messages about what starts have set aside, until the quarantine is removed. They do not say which images were
// lost: these may be back.
func (r Repairer) Notes() []string {
	var all []string
	r.eachReport(func(dir string, found report) { all = append(all, found.text(dir, "")) })
	return all
}

// Quarantined returns what was set aside, until the quarantine is removed.
func (r Repairer) Quarantined() []image.Quarantined {
	all := []image.Quarantined{}
	r.eachReport(func(dir string, found report) {
		all = append(all, image.Quarantined{Dir: dir, At: found.At, Objects: found.objects(), Lost: found.Lost})
	})
	return all
}

// objects are what was set aside.
func (r report) objects() []string {
	if len(r.Foreign) > 0 {
		return r.Foreign
	}
	all := []string{"metadata.db and snapshots.db: " + r.Reason}
	if r.Directories > 0 {
		all = append(all, fmt.Sprintf("%d directories of layers that no image has", r.Directories))
	}
	if r.Blobs > 0 {
		all = append(all, fmt.Sprintf("%d blobs of no image", r.Blobs))
	}
	return all
}

// eachReport calls fn with each report that can be read, in the order of time.
func (r Repairer) eachReport(fn func(dir string, found report)) {
	reports, err := filepath.Glob(filepath.Join(r.QuarantineDir(), "*", reportName))
	if err != nil {
		return
	}
	slices.Sort(reports)
	for _, path := range reports {
		var found report
		data, err := database.ReadOwn(path)
		if err == nil {
			err = json.Unmarshal(data, &found)
		}
		if err == nil {
			fn(filepath.Dir(path), found)
		}
	}
}
