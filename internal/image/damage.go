package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/dbcheck"
)

// A store whose databases cannot be read is made again from what lies beside them: content
// says what images there are, names.json how they are called, and each layer's directory which
// layer it is. Both databases and what is in use by nobody then go to
//
//	Root/quarantine/<time>/  metadata.db, snapshots.db    as they were found
//	                         layers-<n>/                  directories of layers that nothing names
//	                         blobs/                       content of no image
//	                         report.json                  what was found, and what is missing
//
// where they stay until somebody removes them. Nothing is removed because a database that is
// new, or empty, does not know it. Containers that run keep their mounts, whichever directory
// their layers are moved to.
//
// Root/rebuilding names the directory while this goes on, so that a start that is cut short is
// begun anew.

const reportName = "report.json"

func (s *Images) quarantineDir() string  { return filepath.Join(s.cfg.Root, "quarantine") }
func (s *Images) rebuildingPath() string { return filepath.Join(s.cfg.Root, "rebuilding") }

// rebuilding is a rebuild under way.
type rebuilding struct {
	Dir    string `json:"dir"`
	Reason string `json:"reason"`
}

// report says what a rebuild has found.
type report struct {
	At     time.Time `json:"at"`
	Reason string    `json:"reason"`
	// Images are all that are there again; Nameless those of them without their names.
	Images   int `json:"images"`
	Nameless int `json:"nameless"`
	// Layers are directories that are in use again.
	Layers int `json:"layers"`
	// Lost are names whose images are not there any more, with the reason.
	Lost []string `json:"lost,omitempty"`
	// Blobs and Directories were set aside.
	Blobs       int `json:"blobs"`
	Directories int `json:"directories"`
}

func (r report) text(dir string) string {
	text := fmt.Sprintf("the image store's database could not be read (%s) and was made again from what lies beside it: %d images are there again", r.Reason, r.Images)
	if r.Nameless > 0 {
		text += fmt.Sprintf(", %d of them without names, which come with the next pull", r.Nameless)
	}
	if len(r.Lost) > 0 {
		text += ", these are lost and must be pulled or imported again: " + strings.Join(r.Lost, "; ")
	}
	return text + fmt.Sprintf("; what was found lies in %s: remove it after you have looked at it and the containers of that time have ended", dir)
}

// lockStore keeps a second process away, before anything is looked at.
func (s *Images) lockStore() error {
	f, err := os.OpenFile(filepath.Join(s.cfg.Root, "lock"), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(openTimeout)
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			s.lock = f
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(deadline) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("cannot open the image store: another process has %s: %w", f.Name(), errs.Unavailable)
	}
	return errors.Join(err, f.Close())
}

// openWhole opens and recovers the store. When its databases cannot be read it sets them aside
// once, and rebuilds.
func (s *Images) openWhole(ctx context.Context) error {
	damage, err := s.inspect(ctx)
	if err != nil {
		return err
	}
	for attempt := 0; ; attempt++ {
		err := s.attempt(ctx, damage)
		if attempt > 0 || !isDamage(err) || ctx.Err() != nil {
			return err
		}
		damage = err
		s.abandon()
	}
}

// attempt opens the store, after a rebuild if there was damage. A panic is damage, too.
func (s *Images) attempt(ctx context.Context, damage error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("reading it panicked: %v: %w", r, dbcheck.ErrDamaged)
		}
	}()
	s.index, s.names, s.uses = map[string]*entry{}, map[string]string{}, newUses()
	var under *rebuilding
	if damage != nil {
		if under, err = s.setAside(ctx, damage); err != nil {
			return fmt.Errorf("cannot set the damaged database of the image store aside: %w", err)
		}
	}
	if err := s.openStores(ctx); err != nil {
		return err
	}
	if under != nil {
		if err := s.rebuild(s.ns(ctx), under); err != nil {
			return fmt.Errorf("cannot rebuild the image store in %s: %w", s.cfg.Root, err)
		}
	} else if err := s.lostRecords(s.ns(ctx)); err != nil {
		return err
	}
	if err := s.recover(s.ns(ctx)); err != nil {
		return fmt.Errorf("cannot recover the image store in %s: %w", s.cfg.Root, err)
	}
	s.saveNames(s.ns(ctx), nil)
	return nil
}

// isDamage reports whether an error of opening is one of what the databases say. What the kernel
// refuses (a full disk, a missing right) is not.
func isDamage(err error) bool {
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

// abandon lets go of databases that did not do. A panic may have left a transaction that is
// never ended: closing would wait for it.
func (s *Images) abandon() {
	bolt, overlay := s.bolt, s.overlay
	s.bolt, s.overlay = nil, nil
	go func() {
		if overlay != nil {
			_ = overlay.Close()
		}
		if bolt != nil {
			_ = bolt.Close()
		}
	}()
}

// inspect reads both databases whole, and tells damage apart from what keeps it from looking.
func (s *Images) inspect(ctx context.Context) (damage, err error) {
	if data, err := os.ReadFile(s.rebuildingPath()); err == nil {
		var under rebuilding
		if err := json.Unmarshal(data, &under); err != nil || under.Reason == "" {
			under.Reason = "an earlier rebuild was cut short"
		}
		return fmt.Errorf("%s: %w", under.Reason, dbcheck.ErrDamaged), nil
	}
	for _, path := range []string{s.metadataDB(), s.snapshotsDB()} {
		fi, statErr := os.Lstat(path)
		switch {
		case statErr == nil && fi.Size() > 0:
			err = dbcheck.Check(ctx, s.cfg.UnpackHelper, path)
		case statErr != nil && !errors.Is(statErr, os.ErrNotExist):
			return nil, statErr
		case s.hasContent():
			err = fmt.Errorf("%s is missing or empty, though there are images: %w", path, dbcheck.ErrDamaged)
		default:
			err = nil
		}
		switch {
		case errors.Is(err, dbcheck.ErrDamaged):
			return err, nil
		case errors.Is(err, errs.Unavailable), ctx.Err() != nil:
			return nil, err
		case err != nil:
			s.log.Warn("the image store's database is used unchecked", "error", err)
		}
	}
	return nil, nil
}

// hasContent reports whether there is anything that a database would know of.
func (s *Images) hasContent() bool {
	for _, pattern := range []string{filepath.Join(s.contentDir(), "blobs", "*", "*"), filepath.Join(s.layersDir(), "*")} {
		if found, err := filepath.Glob(pattern); err == nil && len(found) > 0 {
			return true
		}
	}
	return false
}

// lostRecords is damage when the database knows no image and the copy of the names does: it is
// a new one in the place of another.
func (s *Images) lostRecords(ctx context.Context) error {
	records, err := s.images.List(ctx)
	if err != nil || len(records) > 0 {
		return err
	}
	names, err := s.readNames()
	if err != nil || len(names) == 0 {
		return nil //nolint:nilerr // there is no copy that would know better
	}
	return fmt.Errorf("%s knows no image, and there are %d: %w", s.metadataDB(), len(names), dbcheck.ErrDamaged)
}

// setAside moves both databases and the layers out of the way.
func (s *Images) setAside(ctx context.Context, damage error) (*rebuilding, error) {
	under, err := s.beginRebuild(damage)
	if err != nil {
		return nil, err
	}
	if dbcheck.Check(ctx, s.cfg.UnpackHelper, s.snapshotsDB()) == nil {
		if err := s.labelFrom(ctx); err != nil {
			s.log.Warn("cannot tell all layers from their database; they are unpacked again", "error", err)
		}
	}
	for from, to := range map[string]string{s.metadataDB(): "metadata.db", s.snapshotsDB(): "snapshots.db"} {
		to = filepath.Join(under.Dir, to)
		if _, err := os.Lstat(to); err == nil { // of a try that was cut short
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
		if err := errs.IgnoreNotExist(os.Rename(s.layersDir(), to)); err != nil {
			return nil, err
		}
		return under, nil
	}
}

// beginRebuild makes the directory of what is set aside, or finds that of a try that was cut
// short.
func (s *Images) beginRebuild(damage error) (*rebuilding, error) {
	if data, err := os.ReadFile(s.rebuildingPath()); err == nil {
		var under rebuilding
		err := json.Unmarshal(data, &under)
		if err == nil && filepath.Dir(under.Dir) == s.quarantineDir() && os.MkdirAll(under.Dir, 0o700) == nil {
			return &under, nil
		}
	}
	if err := os.MkdirAll(s.quarantineDir(), 0o700); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(s.quarantineDir(), time.Now().UTC().Format("20060102T150405Z-"))
	if err != nil {
		return nil, err
	}
	under := &rebuilding{Dir: dir, Reason: strings.TrimSuffix(damage.Error(), ": "+dbcheck.ErrDamaged.Error())}
	data, err := json.Marshal(under)
	if err != nil {
		return nil, err
	}
	return under, replaceSynced(s.rebuildingPath(), data)
}

// labelFrom labels layers from the snapshotter's database, which is whole.
func (s *Images) labelFrom(ctx context.Context) (err error) {
	if _, err := os.Lstat(s.snapshotsDB()); err != nil {
		return nil //nolint:nilerr // there is none
	}
	store, err := s.openLayerStore()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return labelLayers(s.ns(ctx), store)
}

// Faults says what the store has lost, in words for people, until what was set aside is
// removed.
func (s *Images) Faults() []string {
	reports, err := filepath.Glob(filepath.Join(s.quarantineDir(), "*", reportName))
	if err != nil {
		return nil
	}
	slices.Sort(reports)
	var all []string
	for _, path := range reports {
		var r report
		data, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(data, &r)
		}
		if err == nil {
			all = append(all, r.text(filepath.Dir(path)))
		}
	}
	return all
}
