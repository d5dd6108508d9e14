package database

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/database/growing"
	"github.com/berthrun/berth/internal/image/database/partfile"
)

// Unfinished downloads are kept, by the digest of their blob: a later pull continues them, also
// after a crash. The content store checks the digest of the whole blob at the end. The collector
// removes those that nobody has continued for a day.
const (
	downloadRef = "download-"
	// minDownload is the least that is worth a request for the rest, in bytes.
	minDownload = 256 << 10
	// pieceOfDownload is how many bytes are written at a time, which a kill may lose.
	pieceOfDownload = 128 << 10
	// maxDownloads bounds the bytes of all together. The oldest are removed first.
	maxDownloads = 8 << 30
	// maxUnrecorded bounds the bytes of the blobs of a pull that are finished and not recorded. After a kill the next start
	// reads them.
	maxUnrecorded = 32 << 20
)

// BeginDownload opens a writer for a blob, at the end of what an earlier download has left. The
// caller calls its Commit, with a context that has a lease, or Close and LeaveDownload. One download
// of a blob is under way at a time. errdefs.ErrAlreadyExists if the store has the blob, which the
// context's lease then keeps. If the context is that of a pull which wants the blob, see Pull.Wants, the store does not record
// the blob at Commit, but later together with others; see RecordBlobs. So it is with the documents of its image; see ReadTree.
// The end of the pull records what is left.
func (d *DB) BeginDownload(ctx context.Context, desc imagespec.Descriptor) (content.Writer, error) {
	if err := desc.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("the digest %q is not valid: %w", desc.Digest, errs.Invalid)
	}
	if !d.finished.begin(desc.Digest) {
		return nil, fmt.Errorf("blob %s is being downloaded already: %w", desc.Digest, errdefs.ErrUnavailable)
	}
	w, err := d.beginDownload(ctx, desc)
	if err != nil {
		d.finished.end(desc.Digest)
		return nil, err
	}
	return inPieces{w}, nil
}

func (d *DB) beginDownload(ctx context.Context, desc imagespec.Descriptor) (content.Writer, error) {
	ref := downloadRef + desc.Digest.String()
	there, err := d.hasBlob(ctx, desc)
	if err != nil {
		return nil, err
	}
	if there {
		// The blob may have come in another way since a download was interrupted.
		return nil, errors.Join(fmt.Errorf("blob %s: %w", desc.Digest, errdefs.ErrAlreadyExists), d.abort(ref))
	}
	d.awaitCollector() // which may be removing what an earlier download has left
	finish := func(ctx context.Context, data string) error { return d.finishDownload(ctx, desc, data) }
	return partfile.Open(d.ingestDir(ref), ref, desc, finish, func() { d.finished.end(desc.Digest) })
}

// awaitCollector returns once a collection that is under way has ended. A later one sees what began before this call.
func (d *DB) awaitCollector() {
	d.collection.Lock()
	defer d.collection.Unlock()
}

// hasBlob reports whether the store has a blob, and has the context's lease keep it. The database knows the blob then, unless
// the context is that of a pull which wants it.
func (d *DB) hasBlob(ctx context.Context, desc imagespec.Descriptor) (bool, error) {
	if d.finished.has(desc.Digest) {
		return d.recordUnlessWanted(ctx, desc.Digest)
	}
	_, err := d.Content.Info(ctx, desc.Digest)
	if err != nil && !errdefs.IsNotFound(err) {
		return false, err
	}
	if err == nil {
		lease, leased := leases.FromContext(ctx)
		if !leased || pullIn(ctx).wants(desc.Digest) {
			return true, nil
		}
		err = d.update(ctx, func(ctx context.Context) error {
			if _, err := d.Content.Info(ctx, desc.Digest); err != nil {
				return err
			}
			return d.Leases.AddResource(ctx, leases.Lease{ID: lease}, leases.Resource{ID: desc.Digest.String(), Type: contentResource})
		})
		if !errdefs.IsNotFound(err) { // the collector has removed it just now
			return err == nil, err
		}
	}
	// A file without a record may not be on disk completely.
	size, whole := d.verified(desc.Digest)
	if !whole || size != desc.Size {
		return false, nil
	}
	if !d.addIfThere(desc.Digest, size) {
		return false, nil
	}
	return d.recordUnlessWanted(ctx, desc.Digest)
}

// addIfThere notes that a blob is finished, unless the collector has removed its file meanwhile.
func (d *DB) addIfThere(blob digest.Digest, size int64) bool {
	d.collection.Lock()
	defer d.collection.Unlock()
	fi, err := os.Lstat(d.BlobPath(blob))
	if err != nil || !fi.Mode().IsRegular() {
		return false
	}
	d.finished.add(blob, size)
	return true
}

// recordUnlessWanted records a finished blob now, unless the context is that of a pull which wants it.
func (d *DB) recordUnlessWanted(ctx context.Context, blob digest.Digest) (recorded bool, err error) {
	if pullIn(ctx).wants(blob) {
		return true, nil
	}
	err = d.RecordBlobs(ctx, []digest.Digest{blob})
	return err == nil, err
}

// finishDownload moves the file of a blob, which has the right digest, to its place.
func (d *DB) finishDownload(ctx context.Context, desc imagespec.Descriptor, data string) error {
	info, err := d.Content.Info(ctx, desc.Digest)
	if err == nil && d.FileProblem(info) == "" {
		// Such as of an import. Its file is synced, the new one is not.
		return d.RecordBlobs(ctx, []digest.Digest{desc.Digest})
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	to := d.BlobPath(desc.Digest)
	if desc.Size > maxUnrecorded {
		// It is recorded at once. The sync may take long: after a kill in it, the next download continues this one.
		if err := syncData(data); err != nil {
			return err
		}
	}
	p, owner := pullIn(ctx), ""
	document := p.isDocument(desc.Digest)
	if document {
		owner = p.lease.ID
	}
	err = d.finished.move(desc.Digest, desc.Size, owner, func() error {
		err := os.Rename(data, to)
		if errors.Is(err, os.ErrNotExist) {
			err = errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.Rename(data, to))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot move blob %s to its place: %w", desc.Digest, err)
	}
	if document {
		return nil // Wants records it
	}
	if p.wants(desc.Digest) {
		var bytes int64
		for _, one := range d.finished.among(p.blobs) {
			bytes += one.Size
		}
		if bytes <= maxUnrecorded {
			return nil
		}
		return d.recordFinished(ctx, p.blobs)
	}
	return d.RecordBlobs(ctx, []digest.Digest{desc.Digest})
}

// syncData returns once a file of a download would survive a loss of power.
func syncData(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	return errs.OfDisk(errors.Join(unix.Fdatasync(int(f.Fd())), f.Close()))
}

// ingestDir is the directory of what is written with a ref.
func (d *DB) ingestDir(ref string) string {
	return filepath.Join(d.ContentDir(), "ingest", digest.FromString(ref).Encoded())
}

// Followed is a DB for downloads whose file is read while it is written; see Follow.
type Followed struct {
	*DB
	file *growing.File
}

// Follow returns a DB for the download of one blob that others read by file, which may be nil.
func (d *DB) Follow(file *growing.File) Followed { return Followed{d, file} }

// End notes that the download has ended.
func (f Followed) End() { f.file.End() }

// BeginDownload is that of the DB.
func (f Followed) BeginDownload(ctx context.Context, desc imagespec.Descriptor) (content.Writer, error) {
	w, err := f.DB.BeginDownload(ctx, desc)
	if f.file == nil {
		return w, err
	}
	f.file.Begin()
	pieces, ok := w.(inPieces)
	if err != nil || !ok {
		f.file.End()
		return w, err
	}
	status, err := w.Status()
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	data, err := f.openIngest(desc.Digest)
	if err != nil {
		f.file.End() // the download does not need it
		return w, nil
	}
	return inPieces{f.file.Follow(pieces.Writer, data, status.Offset)}, nil
}

// openIngest opens the file of a download that is under way.
func (d *DB) openIngest(blob digest.Digest) (*os.File, error) {
	data := filepath.Join(d.ingestDir(downloadRef+blob.String()), partfile.DataName)
	return os.OpenFile(data, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}

// inPieces is a writer that content.Copy fills in small pieces. By itself it takes 1 MiB at a time.
type inPieces struct{ content.Writer }

// ReadFrom implements io.ReaderFrom.
func (w inPieces) ReadFrom(r io.Reader) (n int64, err error) {
	piece, filled := make([]byte, pieceOfDownload), 0
	for {
		got, err := r.Read(piece[filled:])
		if filled += got; filled == len(piece) || err != nil {
			written, writeErr := w.Write(piece[:filled])
			n, filled = n+int64(written), 0
			if writeErr != nil {
				return n, writeErr
			}
		}
		if err == io.EOF { // a failure may wrap it
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// LeaveDownload ends a download that is not in the store yet. With keep a later one continues it, if it
// is large enough, or has all bytes: then nothing is fetched again.
func (d *DB) LeaveDownload(_ context.Context, desc imagespec.Descriptor, keep bool) error {
	ref := downloadRef + desc.Digest.String()
	if keep {
		fi, err := os.Stat(filepath.Join(d.ingestDir(ref), partfile.DataName))
		if err == nil && (fi.Size() >= minDownload || fi.Size() == desc.Size) {
			return d.boundDownloads()
		}
	}
	return d.abort(ref)
}

// AbortDownload removes what an earlier download of a blob has left. No download of the blob is under way.
func (d *DB) AbortDownload(blob digest.Digest) error { return d.abort(downloadRef + blob.String()) }

func (d *DB) abort(ref string) error {
	if err := os.RemoveAll(d.ingestDir(ref)); err != nil {
		return fmt.Errorf("cannot remove an unfinished download: %w", err)
	}
	return nil
}

// boundDownloads removes the oldest downloads if all together are too large.
func (d *DB) boundDownloads() error {
	all, err := d.ingests()
	if err != nil {
		return err
	}
	var errList []error
	for _, old := range excess(all) {
		errList = append(errList, d.abort(old.ref))
	}
	return errors.Join(errList...)
}

// excess returns the oldest downloads, without which the others are not too large.
func excess(all []ingest) []ingest {
	all = slices.DeleteFunc(slices.Clone(all), func(one ingest) bool { return !one.continues() })
	slices.SortFunc(all, func(a, b ingest) int { return b.written.Compare(a.written) })
	var bytes int64
	for i, one := range all {
		if bytes += one.bytes; bytes > maxDownloads {
			return all[i:]
		}
	}
	return nil
}

// tidyIngests removes the files of unfinished content that nothing can continue. Call it before the
// content store is open. What the database knows of those of older versions goes with the next collection.
func (d *DB) tidyIngests() error {
	mending, err := filepath.Glob(filepath.Join(d.ContentDir(), mendingPrefix+"*"))
	if err != nil {
		return err
	}
	for _, file := range mending {
		if err := os.RemoveAll(file); err != nil {
			return fmt.Errorf("cannot remove unfinished content: %w", err)
		}
	}
	all, err := d.ingests()
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, one := range all {
		keep[one.dir] = one.continues()
	}
	for _, old := range excess(all) {
		keep[old.dir] = false
	}
	for _, one := range all {
		err := error(nil)
		if !keep[one.dir] {
			err = os.RemoveAll(one.dir)
		} else if dir := d.ingestDir(one.ref); dir != one.dir {
			// An older version had another name for it.
			err = errors.Join(os.RemoveAll(dir), os.WriteFile(filepath.Join(one.dir, partfile.RefName), []byte(one.ref), 0o644), os.Rename(one.dir, dir))
		}
		if err != nil {
			return fmt.Errorf("cannot tidy unfinished content: %w", err)
		}
	}
	return nil
}

// dropOldDownloads removes the downloads that nothing has continued for long. The caller holds d.collection.
func (d *DB) dropOldDownloads() error {
	all, err := d.statuses()
	for _, old := range all {
		if strings.HasPrefix(old.Ref, downloadRef) {
			err = errors.Join(err, d.abort(old.Ref))
		}
	}
	return err
}

// statuses lists the content that is being written, for the collector, which removes what the database does not know. Of
// downloads, which the database does not know, these are those that nothing has continued for long.
func (d *DB) statuses() ([]content.Status, error) {
	all, err := d.ingests()
	if err != nil {
		return nil, err
	}
	var found []content.Status
	for _, one := range all {
		ref, err := ReadOwn(filepath.Join(one.dir, partfile.RefName))
		if err != nil || len(ref) == 0 {
			continue // it is at its beginning or its end
		}
		blob, ours := strings.CutPrefix(string(ref), downloadRef)
		if ours && (d.finished.isUnderWay(digest.Digest(blob)) || time.Since(one.written) < leftoverTime) {
			continue
		}
		found = append(found, content.Status{Ref: string(ref), Offset: one.bytes, UpdatedAt: one.written})
	}
	return found, nil
}

const mendingPrefix = "mending-"

// MendingPath is the file of a blob that takes the place of a damaged one when it is complete. It is
// not among the blobs: whatever is there is taken for one.
func MendingPath(blob string) string {
	content := filepath.Dir(filepath.Dir(filepath.Dir(blob)))
	return filepath.Join(content, mendingPrefix+filepath.Base(blob))
}

// ingest is a directory of the content store with content that is being written, or was.
type ingest struct {
	dir string
	// ref is that of a download which can be continued, "" for other content.
	ref     string
	bytes   int64
	written time.Time
	// whole is set for a download that has all its bytes.
	whole bool
}

// continues reports whether a later download continues it.
func (i ingest) continues() bool { return i.ref != "" && (i.bytes >= minDownload || i.whole) }

// ingests reads the directories. The content store's own list fails if one of them is damaged, or
// ends meanwhile.
func (d *DB) ingests() ([]ingest, error) {
	top := filepath.Join(d.ContentDir(), "ingest")
	entries, err := os.ReadDir(top)
	if err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("cannot list unfinished content: %w", err)
	}
	var all []ingest
	for _, entry := range entries {
		one := ingest{dir: filepath.Join(top, entry.Name())}
		if fi, err := os.Lstat(filepath.Join(one.dir, partfile.DataName)); err == nil && entry.IsDir() && fi.Mode().IsRegular() {
			one.bytes, one.written = fi.Size(), fi.ModTime()
			one.ref = readDownloadRef(one.dir)
			total, err := ReadOwn(filepath.Join(one.dir, partfile.TotalName))
			one.whole = err == nil && string(total) == strconv.FormatInt(one.bytes, 10)
		}
		all = append(all, one)
	}
	return all, nil
}

// readDownloadRef returns the ref of a download whose files are whole. A loss of power empties files.
func readDownloadRef(dir string) string {
	ref, err := ReadOwn(filepath.Join(dir, partfile.RefName))
	i := strings.Index(string(ref), downloadRef)
	if err != nil || i < 0 || digest.Digest(ref[i+len(downloadRef):]).Validate() != nil {
		return ""
	}
	return string(ref[i:])
}

// UnfinishedBytes is how many bytes unfinished content has on disk.
func (d *DB) UnfinishedBytes() (int64, error) {
	all, err := d.ingests()
	var bytes int64
	for _, one := range all {
		bytes += one.bytes
	}
	return bytes, err
}
