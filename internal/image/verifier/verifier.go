// Package verifier asks the programs of a directory whether an image may be used, as containerd's plugin
// io.containerd.image-verifier.v1.bindir does, with containerd's own code.
package verifier

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/pkg/imageverifier/bindir"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
)

// timeout is how long one program may take, in nanoseconds: containerd's default. The type of the field is internal to
// containerd, and only an untyped constant converts to it.
const timeout = 10_000_000_000

// Check returns nil if all programs of a directory accept the image. They are called one after the other with the
// arguments -name, -digest and -stdin-media-type, and read the descriptor from stdin. An empty
// directory accepts all images. A program that cannot run, or takes too long, refuses.
func Check(ctx context.Context, dir, name string, desc imagespec.Descriptor) error {
	if _, err := os.ReadDir(dir); err != nil {
		return fmt.Errorf("cannot read image.verifier_dir: %w: %w", err, errs.State)
	}
	// All of them count: one that was skipped would accept.
	v := bindir.NewImageVerifier(&bindir.Config{BinDir: dir, MaxVerifiers: -1, PerVerifierTimeout: timeout})
	judgement, err := v.VerifyImage(ctx, name, desc)
	if err != nil {
		return fmt.Errorf("image.verifier_dir %s: %w: %w", dir, err, errs.State)
	}
	if !judgement.OK {
		return fmt.Errorf("image.verifier_dir %s: %s: %w", dir, judgement.Reason, errs.State)
	}
	return nil
}

// Programs lists the programs that Check calls, in their order.
func Programs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot read image.verifier_dir: %w: %w", err, errs.State)
	}
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, nil
}

// Fingerprint changes when a program of the directory is added, removed or replaced. Of a symbolic link it is the program
// to which the link leads, which is what Check runs.
func Fingerprint(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("cannot read image.verifier_dir: %w: %w", err, errs.State)
	}
	hash := sha256.New()
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		info, err := os.Stat(path)
		if err == nil && entry.Type()&fs.ModeSymlink != 0 {
			// Another program may have the same size and time: packages are built so.
			if path, err = filepath.EvalSymlinks(path); err == nil {
				fmt.Fprintf(hash, "%s\x00", path)
			}
		}
		if err != nil {
			return "", fmt.Errorf("cannot read image.verifier_dir: %w: %w", err, errs.State)
		}
		fmt.Fprintf(hash, "%s\x00%d %d %v\x00", entry.Name(), info.Size(), info.ModTime().UnixNano(), info.Mode())
	}
	return fmt.Sprintf("%x", hash.Sum(nil)), nil
}
