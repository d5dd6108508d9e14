package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/erofs"
	"github.com/berthrun/berth/internal/image/importdirs"
	"github.com/berthrun/berth/internal/image/layers"
	"github.com/berthrun/berth/internal/image/lost"
	"github.com/berthrun/berth/internal/image/snapshotters"
)

// own is a directory or a file of the store itself, which belongs to the daemon's user.
type own struct {
	path string
	dir  bool
	// want is the mode that a repair gives it. least and most are the bits that it must and may have: umasks
	// differ.
	want, least, most uint32
}

func private(paths ...string) []own {
	var all []own
	for _, path := range paths {
		all = append(all, own{path, true, 0o700, 0o700, 0o700})
	}
	return all
}

func shared(paths ...string) []own {
	var all []own
	for _, path := range paths {
		all = append(all, own{path, true, 0o755, 0o700, 0o755})
	}
	return all
}

func files(want uint32, paths ...string) []own {
	var all []own
	for _, path := range paths {
		all = append(all, own{path, false, want, 0o400, 0o644})
	}
	return all
}

// checkModes looks at the modes and owners of the store's own directories and files. Those of files of layers are
// compared with their layer. Those of what containers write are the containers'.
func (r *run) checkModes(ctx context.Context) error {
	r.stages.Say("check modes", "the disk")
	root := r.DB.Root
	// Those above come first: nobody but the daemon's user can exchange what is below them then.
	list := private(root)
	list = append(list, shared(r.DB.ContentDir(), filepath.Join(r.DB.ContentDir(), "blobs"), filepath.Join(r.DB.ContentDir(), "ingest"))...)
	list = append(list, private(
		filepath.Dir(r.DB.LayersDir()), r.DB.LayersDir(), r.Rootfs.ContainersDir(), r.Rootfs.PoolDir(), layers.UnsyncedDir(root),
		r.Erofs.Root, r.Erofs.LayersDir(), filepath.Join(root, "trash"), filepath.Join(root, "quarantine"), filepath.Join(root, "signatures"), filepath.Join(root, "preloaded"),
	)...)
	list = append(list, files(0o600, r.DB.MetadataFile(), r.DB.SnapshotsFile())...)
	for _, name := range []string{"names.json", lost.FileName, importdirs.FileName, snapshotters.FileName, "lock", "closed", "rebuilding"} {
		list = append(list, files(0o600, filepath.Join(root, name))...)
	}
	for _, algorithm := range entries(filepath.Join(r.DB.ContentDir(), "blobs")) {
		list = append(list, shared(algorithm)...)
		list = append(list, files(0o444, entries(algorithm)...)...)
	}
	for _, layer := range entries(r.DB.LayersDir()) {
		list = append(append(list, private(layer)...), files(0o600, filepath.Join(layer, database.LabelName))...)
	}
	for _, layer := range entries(r.Erofs.LayersDir()) {
		list = append(append(list, private(layer)...), files(0o600, erofs.ImageFile(layer), erofs.RecordFile(layer))...)
	}
	for _, container := range entries(r.Rootfs.ContainersDir()) {
		list = append(append(list, private(container, filepath.Join(container, "work"), filepath.Join(container, "volumes"))...), files(0o600, filepath.Join(container, "image"))...)
	}
	for _, dir := range []string{layers.UnsyncedDir(root), filepath.Join(root, "signatures"), filepath.Join(root, "preloaded")} {
		list = append(list, files(0o600, entries(dir)...)...)
	}
	before := len(r.report.Damage)
	for _, one := range list {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if problem := one.problem(); problem != "" {
			r.mendMode(one, problem)
		}
	}
	if err := r.checkPool(ctx); err != nil {
		return err
	}
	if len(r.report.Damage) > before {
		r.note("modes and owners of what containers have written are not checked: only these containers know them")
	}
	return nil
}

// entries lists the paths in a directory, none if it cannot be read.
func entries(dir string) []string {
	found, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var all []string
	for _, entry := range found {
		all = append(all, filepath.Join(dir, entry.Name()))
	}
	return all
}

// problem says what is wrong with mode and owner, "" if nothing is, if the object is not there, or of another
// type: a start sets such things aside.
func (o own) problem() string {
	var st unix.Stat_t
	if err := unix.Lstat(o.path, &st); err != nil || !o.is(&st) {
		return ""
	}
	return o.differs(&st)
}

func (o own) is(st *unix.Stat_t) bool {
	want := uint32(unix.S_IFREG)
	if o.dir {
		want = unix.S_IFDIR
	}
	return st.Mode&unix.S_IFMT == want
}

func (o own) differs(st *unix.Stat_t) string {
	var all []string
	if mode := st.Mode & 0o7777; mode&o.least != o.least || mode&^o.most != 0 {
		all = append(all, fmt.Sprintf("its mode is %o, want %o", mode, o.want))
	}
	if uid, gid := os.Geteuid(), os.Getegid(); int(st.Uid) != uid || int(st.Gid) != gid {
		all = append(all, fmt.Sprintf("its owner is %d:%d, want %d:%d", st.Uid, st.Gid, uid, gid))
	}
	return strings.Join(all, ", ")
}

// mendMode reports an object, and repairs it if it may.
func (r *run) mendMode(one own, problem string) {
	damage := image.Damage{Object: "file", Path: one.path, Problem: problem, Images: []string{}, Containers: []string{}}
	if one.dir {
		damage.Object = "directory"
	}
	if !r.repair {
		damage.Advice = "run the check with --repair"
	} else if err := one.mend(); err != nil {
		damage.Advice = fmt.Sprintf("its mode and owner cannot be set: %v", err)
	} else {
		damage.Repaired, damage.Repair = true, fmt.Sprintf("mode %o and owner %d:%d set", one.want, os.Geteuid(), os.Getegid())
	}
	r.found(damage)
}

// mend sets mode and owner by a descriptor of the object: while others can write to a directory above, the path
// may lead elsewhere at any time.
func (o own) mend() error {
	flags := unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := unix.Open(o.path, flags, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	switch {
	case !o.is(&st):
		return errors.New("it is of another type now; a start of the daemon sets it aside")
	case !o.dir && st.Nlink > 1:
		return fmt.Errorf("the file has %d names, and the store's files have one; look where it comes from", st.Nlink)
	case o.differs(&st) == "":
		return nil
	}
	// A change of the owner may clear bits of the mode.
	if err := unix.Fchown(fd, os.Geteuid(), os.Getegid()); err != nil {
		return err
	}
	return unix.Fchmod(fd, o.want)
}

// checkPool looks at the directories that are prepared for root filesystems. A repair prepares others: a container
// may take one at any time.
func (r *run) checkPool(ctx context.Context) error {
	wrong := ""
	for _, dir := range entries(r.Rootfs.PoolDir()) {
		upper := own{filepath.Join(dir, "upper"), true, 0o755, 0o755, 0o755}
		for _, one := range append(private(dir, filepath.Join(dir, "work")), upper) {
			if problem := one.problem(); problem != "" && wrong == "" {
				wrong = fmt.Sprintf("%s: %s", one.path, problem)
			}
		}
	}
	if wrong == "" {
		return nil
	}
	damage := image.Damage{
		Object: "directory", Path: r.Rootfs.PoolDir(), Problem: "directories that are prepared for containers have wrong modes or owners, such as " + wrong,
		Images: []string{}, Containers: []string{},
	}
	if !r.repair {
		damage.Advice = "run the check with --repair"
		r.found(damage)
		return nil
	}
	if err := r.Rootfs.RenewPool(ctx); err != nil {
		return fmt.Errorf("cannot prepare directories for containers again: %w", err)
	}
	damage.Repaired, damage.Repair = true, "other directories are prepared"
	r.found(damage)
	return nil
}
