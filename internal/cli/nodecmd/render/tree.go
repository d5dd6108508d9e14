package render

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/berthrun/berth/internal/cli/nodecmd/privatefile"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision/render"
)

// writeTree creates a directory with the tree in "root" and the manifest beside it. Only its owner
// can read it; the manifest has the owners of files.
func writeTree(dir string, out render.Output) error {
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return fmt.Errorf("directory %s is not empty: %w", dir, errs.Exists)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot make the tree: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // a directory is searched
		return fmt.Errorf("cannot make the tree: %w", err)
	}
	if err := privatefile.Write(filepath.Join(dir, "manifest.json"), out.Text, 0o600); err != nil {
		return err
	}
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil { //nolint:gosec // below a directory of its owner
		return fmt.Errorf("cannot make the tree: %w", err)
	}
	for _, e := range out.Tree {
		if err := writeEntry(filepath.Join(root, e.Path), e); err != nil {
			return fmt.Errorf("cannot make the tree: %w", err)
		}
	}
	return nil
}

func writeEntry(at string, e render.Entry) error {
	if e.Type == "symlink" {
		return os.Symlink(e.Target, at)
	}
	n, err := strconv.ParseUint(cmp.Or(e.Mode, "0"), 8, 16)
	if err != nil {
		return err
	}
	mode := os.FileMode(n & 0o777)
	for bit, flag := range map[uint64]os.FileMode{0o4000: os.ModeSetuid, 0o2000: os.ModeSetgid, 0o1000: os.ModeSticky} {
		if n&bit != 0 {
			mode |= flag
		}
	}
	if e.Type == "directory" {
		err = os.Mkdir(at, 0o700)
	} else {
		err = os.WriteFile(at, e.Content, 0o600)
	}
	return errors.Join(err, os.Chmod(at, mode))
}
