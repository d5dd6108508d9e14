package layers

import (
	"os"
	"path/filepath"

	"github.com/berthrun/berth/internal/image/unpack"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// settle does for a layer that was unpacked alone, into upper, what depends on the layers below, whose directories are lower.
func (u *unpacking) settle(upper string, lower []string, result unpack.Result) error {
	if len(lower) == 0 || result.Root && len(result.Unsure) == 0 {
		return nil
	}
	if !result.Root {
		if err := sysfile.CopyAttributes(filepath.Join(u.db.LayersDir(), lower[0]), upper); err != nil {
			return err
		}
	}
	return u.dropVain(upper, lower, result.Unsure)
}

// dropVain removes the deletions of what the layers below do not have.
func (u *Unpacker) dropVain(upper string, lower, deletions []string) error {
	if len(deletions) == 0 {
		return nil
	}
	root, err := os.Open(upper)
	if err != nil {
		return err
	}
	defer root.Close()
	dirs := make([]string, len(lower))
	for i, dir := range lower {
		dirs[i] = filepath.Join(u.db.LayersDir(), dir)
	}
	for _, name := range deletions {
		has, err := sysfile.LayersHave(dirs, name)
		if err != nil {
			return err
		}
		if has {
			continue
		}
		if err := sysfile.RemoveWhiteout(root, name); err != nil {
			return err
		}
	}
	return nil
}
