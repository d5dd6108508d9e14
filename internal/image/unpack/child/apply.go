package child

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

const (
	xattrPrefix = "SCHILY.xattr."

	// maxFile is more than any file of an image has; a header that claims more
	// is wrong.
	maxFile = 1 << 40
	// maxEntries bounds the answer and the time of one layer.
	maxEntries = 4 << 20
	// MaxInodes bounds the files and directories of one layer. It counts directories without an entry, too.
	MaxInodes = 2 * maxEntries
	// maxTrailer bounds what follows the end of the archive: padding, which tools round up
	// to some kilobytes. The digest is of it, too.
	maxTrailer = 16 << 20
)

// layer is one layer on its way to upper.
type layer struct {
	upper, lower string
	maxBytes     int64
	alone        bool
	// maxLayer is Job.MaxLayer.
	maxLayer int64
	// files is Job.WhiteoutFiles, whole Job.Whole.
	files, whole bool

	// progress counts entries and bytes. named is set once an error names its entry.
	progress *progress
	named    bool
	size     int64
	// buffer is for the content of files. entered is the directory of the entry before, "" if a link led to it; see enter.
	buffer  []byte
	entered string
	// dirs are the directories that the layer itself describes, kept when alone.
	dirs      map[string]bool
	whiteouts map[string]bool
	opaque    map[string]bool
	// last is what directories get after all entries, by their paths.
	last map[string]lastAttributes
	// implied are the directories that are there for the deletions in them alone.
	implied map[string]bool
	// unsure is Result.Unsure.
	unsure []string
	// root is set when the layer describes the root directory.
	root    bool
	counter counter
}

// errNeedsLower ends a job that cannot be done without the layers below, errNeedsFiles one that cannot be done without their
// files.
var (
	errNeedsLower = errors.New("the layer rests on those below")
	errNeedsFiles = errors.New("the layer rests on files of those below")
)

// apply unpacks the possibly encrypted and compressed layer that r gives into upper. lower is
// where the layers below can be seen, or "". p gets how far it has come.
func apply(ctx context.Context, r io.Reader, upper, lower string, job Job, p *progress) (Result, error) {
	if job.Secret == nil {
		return applyPlain(ctx, r, upper, lower, job, p)
	}
	decrypted, err := newDecrypter(r, job.Secret)
	if err != nil {
		return Result{}, err
	}
	result, err := applyPlain(ctx, decrypted, upper, lower, job, p)
	if err != nil && (errors.Is(err, errNeedsLower) || errors.Is(err, errNeedsFiles) || !errors.Is(kindOf(err), errs.Invalid)) {
		return Result{}, err
	}
	// A layer that was changed decrypts to something that is no layer. That it was changed is the reason.
	if changed := decrypted.authentic(); changed != nil {
		return Result{}, changed
	}
	return result, err
}

// applyPlain is apply for a layer that is not encrypted.
func applyPlain(ctx context.Context, r io.Reader, upper, lower string, job Job, p *progress) (Result, error) {
	stream, err := newStream(r)
	if err != nil {
		return Result{}, err
	}
	defer stream.Close()
	defer interrupt(r) // the end of the stream waits for a read
	stream.counted = &p.bytes
	if job.MaxLayer > 0 {
		stream.allow(job.MaxLayer, fmt.Errorf("the layer has more than %d bytes unpacked, the limit of image.max_layer_gib: %w", job.MaxLayer, errs.Invalid))
	}
	l := &layer{
		upper: upper, lower: lower, maxBytes: job.MaxBytes, maxLayer: job.MaxLayer, alone: job.Alone, files: job.WhiteoutFiles, whole: job.Whole, progress: p,
		dirs: map[string]bool{"/": true}, whiteouts: map[string]bool{}, opaque: map[string]bool{}, last: map[string]lastAttributes{}, implied: map[string]bool{},
	}
	if err := l.extract(ctx, stream); err != nil {
		if l.named {
			return Result{}, fmt.Errorf("cannot apply the layer: %w", err)
		}
		return Result{}, fmt.Errorf("cannot apply the layer, %s: %w", p.where(), err)
	}
	// What follows the end of the archive counts for the digest.
	stream.allow(maxTrailer, fmt.Errorf("more than %d bytes follow the end of the layer's archive: %w", maxTrailer, errs.Invalid))
	diffID, err := stream.Digest()
	if err != nil {
		return Result{}, fmt.Errorf("cannot read the layer to its end: %w", err)
	}
	if err := l.finish(); err != nil {
		return Result{}, fmt.Errorf("cannot apply the layer's deletions: %w", err)
	}
	result := Result{DiffID: diffID, Size: l.size, Root: l.root, Unsure: l.unsure}
	if result.Usage, err = l.counter.directories(upper); err != nil {
		return Result{}, fmt.Errorf("cannot look at the layer's directories: %w", err)
	}
	for dir := range l.opaque {
		result.Opaque = append(result.Opaque, strings.TrimPrefix(dir, upper+"/"))
	}
	return result, nil
}

// accept judges an entry before it is written, and takes from it what only the
// host may set.
func (l *layer) accept(header *tar.Header) (bool, error) {
	if header.Typeflag == tar.TypeXGlobalHeader {
		return false, nil // it describes no file, and berth does not use its records
	}
	l.progress.entries.Add(1)
	l.progress.at.Store(&header.Name)
	err := l.judge(header)
	l.named = err != nil
	return err == nil, err
}

func (l *layer) judge(header *tar.Header) error {
	if l.progress.entries.Load() > maxEntries {
		return refuse(header, "is one too many: a layer has at most %d", maxEntries)
	}
	if header.Size > maxFile {
		return refuse(header, "claims %d bytes", header.Size)
	}
	l.size += header.Size
	l.progress.bytes.Add(header.Size)
	// The archive of sparse files is smaller than these.
	if l.maxLayer > 0 && l.size > l.maxLayer {
		return refuse(header, "needs more than the %d bytes that a layer may have, the limit of image.max_layer_gib", l.maxLayer)
	}
	if l.size > l.maxBytes {
		return fmt.Errorf("entry %.200q needs more than the %d bytes that the disk has left: %w", header.Name, l.maxBytes, errs.Exhausted)
	}
	if err := checkEntry(header); err != nil {
		return err
	}
	if l.files && strings.HasPrefix(filepath.Base(hardlinkOf(header)), sysfile.WhiteoutPrefix) {
		return refuse(header, "is another name of a deletion")
	}
	if l.alone && !l.complete(header) {
		return errNeedsLower
	}
	for key := range header.PAXRecords {
		if name, ok := strings.CutPrefix(key, xattrPrefix); ok && !allowedXattr(name) {
			delete(header.PAXRecords, key)
		}
	}
	return nil
}

// hardlinkOf is the name that an entry is another name of, "" if it is none.
func hardlinkOf(header *tar.Header) string {
	if header.Typeflag != tar.TypeLink {
		return ""
	}
	return header.Linkname
}

// complete reports whether the layer has described the directory of an entry before
// the entry. If not, it is one of a layer below, whose owner and mode count.
func (l *layer) complete(header *tar.Header) bool {
	name := filepath.Clean("/" + header.Name)
	dir, base := filepath.Split(name)
	dir = filepath.Clean(dir)
	if !l.dirs[dir] || dir == "/" && base == sysfile.OpaqueName && !l.files {
		return false
	}
	if header.Typeflag == tar.TypeDir {
		l.dirs[name] = true
	}
	return true
}

// allowedXattr reports whether a layer may set an extended attribute. Those of the
// overlay file system would change what other layers show.
func allowedXattr(name string) bool {
	return name == "security.capability" ||
		strings.HasPrefix(name, "system.posix_acl_") ||
		strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.")
}

// whiteout takes the entries that delete something of the layers below. path is
// where the entry would be written.
func (l *layer) whiteout(header *tar.Header, path string) (write bool, err error) {
	base, dir := filepath.Base(path), filepath.Dir(path)
	l.counter.unknown = l.counter.unknown || strings.HasPrefix(base, sysfile.WhiteoutPrefix)
	if base == sysfile.OpaqueName {
		if err := l.markOpaque(dir); err != nil || !l.files {
			return false, err
		}
		return false, mkWhiteoutFile(path)
	}
	name, ok := strings.CutPrefix(base, sysfile.WhiteoutPrefix)
	if !ok {
		return true, nil
	}
	if name == "" || name == "." || name == ".." {
		return false, refuse(header, "deletes nothing that has a name")
	}
	if l.files && strings.HasPrefix(name, sysfile.WhiteoutPrefix) {
		return false, nil // no layer has such a name, so nothing is deleted; old tools have directories of their own there
	}
	target := filepath.Join(dir, name)
	_, below := l.lookupBelow(strings.TrimPrefix(target, l.upper+"/"))
	l.whiteouts[target] = true
	if l.implied[target] {
		delete(l.implied, target)
		if err := os.RemoveAll(target); err != nil {
			return false, err
		}
	}
	if l.files {
		return false, mkWhiteoutFile(path)
	}
	if _, err := os.Lstat(target); err == nil {
		// A deletion concerns the layers below only; what this layer has under
		// the name stays, and finish hides what is below it.
		return false, nil
	}
	if below == nil && !l.alone {
		// The kernel would list the deletion as a file where the directory is in no other layer.
		return false, nil
	}
	if l.alone && dir != l.upper {
		if len(l.unsure) == maxUnsure {
			return false, errNeedsLower
		}
		l.unsure = append(l.unsure, strings.TrimPrefix(target, l.upper+"/"))
	}
	return false, mkWhiteout(target)
}

func mkWhiteout(path string) error {
	if err := unix.Mknod(path, unix.S_IFCHR, 0); err != nil {
		return &os.PathError{Op: "mknod", Path: path, Err: err}
	}
	return nil
}

// mkWhiteoutFile makes the file that is a deletion in the form of archives.
func mkWhiteoutFile(path string) error {
	err := unix.Mknod(path, unix.S_IFREG, 0)
	if fi, statErr := os.Lstat(path); errors.Is(err, unix.EEXIST) && statErr == nil && fi.Mode().IsRegular() {
		return nil // the layer deletes it twice
	}
	if err != nil {
		return &os.PathError{Op: "mknod", Path: path, Err: err}
	}
	return nil
}

func (l *layer) markOpaque(dir string) error {
	if len(l.opaque) >= maxOpaque {
		return fmt.Errorf("the layer has more than %d opaque directories: %w", maxOpaque, errs.Invalid)
	}
	l.opaque[dir] = true
	return nil
}

// finish handles what can be decided only after all entries: names that
// were deleted and made again, a root that hides everything below, and the attributes of directories.
func (l *layer) finish() error {
	if l.files {
		err := l.dropVain()
		clear(l.opaque) // files say so
		return errors.Join(err, l.finishDirectories())
	}
	for path := range l.whiteouts {
		if fi, err := os.Lstat(path); err == nil && fi.IsDir() {
			if err := l.markOpaque(path); err != nil {
				return err
			}
		}
	}
	if err := l.hideBelow(); err != nil {
		return err
	}
	if err := l.dropVain(); err != nil {
		return err
	}
	return l.finishDirectories()
}

// dropVain removes the deletions in opaque directories, and the directories that are there for them alone. They delete nothing, and the kernel would list them as files.
func (l *layer) dropVain() error {
	if len(l.opaque) == 0 {
		return nil
	}
	for path := range l.whiteouts {
		if !l.isBelowOpaque(path) {
			continue
		}
		if fi, err := os.Lstat(path); err == nil && isDeletion(fi) {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	for path := range l.implied {
		if !l.isBelowOpaque(path) {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

// isBelowOpaque reports whether a directory above a path hides what the layers below have in it.
func (l *layer) isBelowOpaque(path string) bool {
	for path != l.upper {
		path = filepath.Dir(path)
		if l.opaque[path] {
			return true
		}
	}
	return false
}

// hideBelow does what an opaque root directory stands for.
func (l *layer) hideBelow() error {
	if !l.opaque[l.upper] {
		return nil
	}
	// The overlay file system knows no opaque root: hide each name by itself.
	delete(l.opaque, l.upper)
	if l.lower == "" {
		return nil
	}
	below, err := os.ReadDir(l.lower)
	if err != nil {
		return err
	}
	for _, entry := range below {
		path := filepath.Join(l.upper, entry.Name())
		fi, err := os.Lstat(path)
		switch {
		case errors.Is(err, os.ErrNotExist):
			err = mkWhiteout(path)
		case err == nil && fi.IsDir():
			err = l.markOpaque(path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
