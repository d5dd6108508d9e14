package layers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// The files of an artifact are copies of their blobs: nothing that happens to a file in a mount can change a blob. On a
// file system that shares blocks between files a copy takes no space.

// readChunk is how much is read between two looks at the context, in bytes.
const readChunk = 16 << 20

// fillArtifact copies the files of an artifact into the snapshot key.
func (u *unpacking) fillArtifact(ctx context.Context, key string) error {
	info, err := u.db.Snapshots.Stat(ctx, key)
	if err != nil {
		return fmt.Errorf("cannot look up a snapshot: %w", err)
	}
	// Whatever a name is, it cannot lead out of it.
	root, err := os.OpenRoot(database.UpperDir(info))
	if err != nil {
		return err
	}
	defer root.Close()
	var copied int64
	for _, file := range u.t.Artifact.Files {
		if u.whiteouts && strings.Contains("/"+file.Name, "/"+sysfile.WhiteoutPrefix) {
			return fmt.Errorf("layer %d (%s) has the name %q, and files of such names are deletions where root filesystems are copies: %w", file.Layer, file.Digest, file.Name, errs.Unsupported)
		}
		if most := u.maxLayer.Load(); most > 0 && file.Size > most {
			err = fmt.Errorf("it has %d bytes, more than %d, the limit of image.max_layer_gib: %w", file.Size, most, errs.Invalid)
		} else {
			err = u.copyFile(ctx, root, file, func(n int64) { copied += n; u.unpacked(n) })
		}
		if err != nil {
			u.unpacked(-copied)
			return fmt.Errorf("layer %d (%s), the file %q: %w", file.Layer, file.Digest, file.Name, err)
		}
	}
	return nil
}

// copyFile copies one blob, and compares the copy with the digest.
func (u *unpacking) copyFile(ctx context.Context, root *os.Root, file image.ArtifactFile, copied func(int64)) (err error) {
	blob, err := u.db.OpenBlob(file.Digest)
	if err != nil {
		return err
	}
	defer blob.Close()
	if err := makeDirs(root, path.Dir(file.Name)); err != nil {
		return err
	}
	to, err := root.OpenFile(file.Name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	if err := sysfile.CopyContent(ctx, to, blob, copied); err != nil {
		return err
	}
	if _, err := to.Seek(0, io.SeekStart); err != nil {
		return err
	}
	verifier := file.Digest.Verifier()
	for {
		_, err := io.CopyN(verifier, to, readChunk)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if !verifier.Verified() {
		return fmt.Errorf("its blob has other content on disk than the digest says; run berth image fsck --repair, or remove the artifact and pull it again: %w", errs.Invalid)
	}
	return to.Chmod(0o644) // whatever the umask
}

// makeDirs makes a directory and those above it, which everybody may read.
func makeDirs(root *os.Root, dir string) error {
	if dir == "." {
		return nil
	}
	if err := makeDirs(root, path.Dir(dir)); err != nil {
		return err
	}
	err := root.Mkdir(dir, 0o755)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return root.Chmod(dir, 0o755)
}
