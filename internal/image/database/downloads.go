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
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/image/database/growing"
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
)

// BeginDownload opens a writer for a blob, at the end of what an earlier download has left. The
// caller calls its Commit, with a context that has a lease, or Close and LeaveDownload. One download
// of a blob is under way at a time. errdefs.ErrAlreadyExists if the store has the blob, which the
// context's lease then keeps.
func (d *DB) BeginDownload(ctx context.Context, desc imagespec.Descriptor) (content.Writer, error) {
	opts := []content.WriterOpt{content.WithRef(downloadRef + desc.Digest.String()), content.WithDescriptor(desc)}
	// What a lease keeps goes with it. Without one the store keeps it for a day.
	w, err := d.Content.Writer(WithNamespace(context.Background()), opts...)
	if err == nil {
		return inPieces{w}, nil
	}
	if !errdefs.IsAlreadyExists(err) {
		return nil, err
	}
	// The blob may have come in another way since.
	if _, err := d.Content.Status(ctx, downloadRef+desc.Digest.String()); err == nil {
		if err := d.abort(ctx, downloadRef+desc.Digest.String()); err != nil {
			return nil, err
		}
	}
	return d.Content.Writer(ctx, opts...)
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
	refs, err := filepath.Glob(filepath.Join(d.ContentDir(), "ingest", "*", "ref"))
	if err != nil {
		return nil, err
	}
	for _, file := range refs {
		if ref, err := ReadOwn(file); err == nil && strings.HasSuffix(string(ref), downloadRef+blob.String()) {
			return os.OpenFile(filepath.Join(filepath.Dir(file), "data"), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		}
	}
	return nil, fmt.Errorf("the download of blob %s has no file", blob)
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
func (d *DB) LeaveDownload(ctx context.Context, desc imagespec.Descriptor, keep bool) error {
	ref := downloadRef + desc.Digest.String()
	if keep {
		status, err := d.Content.Status(ctx, ref)
		if err == nil && (status.Offset >= minDownload || status.Offset == desc.Size) {
			return d.boundDownloads(ctx)
		}
	}
	return d.abort(ctx, ref)
}

// AbortDownload removes what an earlier download of a blob has left. No download of the blob is under way.
func (d *DB) AbortDownload(ctx context.Context, blob digest.Digest) error {
	return d.abort(ctx, downloadRef+blob.String())
}

func (d *DB) abort(ctx context.Context, ref string) error {
	if err := d.Content.Abort(ctx, ref); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("cannot remove an unfinished download: %w", err)
	}
	return nil
}

// boundDownloads removes the oldest downloads if all together are too large.
func (d *DB) boundDownloads(ctx context.Context) error {
	all, err := d.ingests()
	if err != nil {
		return err
	}
	var errList []error
	for _, old := range excess(all) {
		errList = append(errList, d.abort(ctx, old.ref))
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
// content store is open. What the database knows of them goes with the next collection.
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
	for dir, kept := range keep {
		if kept {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("cannot remove unfinished content: %w", err)
		}
	}
	return nil
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
		if fi, err := os.Lstat(filepath.Join(one.dir, "data")); err == nil && entry.IsDir() && fi.Mode().IsRegular() {
			one.bytes, one.written = fi.Size(), fi.ModTime()
			one.ref = readDownloadRef(one.dir)
			total, err := ReadOwn(filepath.Join(one.dir, "total"))
			one.whole = err == nil && string(total) == strconv.FormatInt(one.bytes, 10)
		}
		all = append(all, one)
	}
	return all, nil
}

// readDownloadRef returns the ref of a download whose files are whole. A loss of power empties files.
func readDownloadRef(dir string) string {
	ref, err := ReadOwn(filepath.Join(dir, "ref"))
	i := strings.Index(string(ref), downloadRef)
	if err != nil || i < 0 || digest.Digest(ref[i+len(downloadRef):]).Validate() != nil {
		return ""
	}
	for _, name := range []string{"startedat", "updatedat"} {
		var at time.Time
		if data, err := ReadOwn(filepath.Join(dir, name)); err != nil || at.UnmarshalText(data) != nil {
			return ""
		}
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
