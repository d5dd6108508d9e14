package leaks

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/berthrun/berth/internal/errs"
)

// mounts lists what is mounted for sandboxes and containers below the state directory.
func mounts(_ context.Context, f *Facts) ([]object, error) {
	var all []object
	for dir, what := range map[string]string{
		filepath.Join(f.State, "engine", "sandboxes"): "a namespace, /dev/shm or volume of sandbox",
		filepath.Join(f.State, "images", "rootfs"):    "a root filesystem or image of",
		filepath.Join(f.State, "images", "mapped"):    "a root filesystem or image of",
	} {
		found, err := f.Host.Mounts(dir)
		if err != nil {
			return nil, err
		}
		for _, m := range found {
			rest, ok := strings.CutPrefix(m.Path, dir+"/")
			if !ok {
				continue
			}
			key, _, _ := strings.Cut(rest, "/")
			owner, _, _ := strings.Cut(key, "-") // that of an image which a sandbox mounts is SANDBOX-IMAGE
			all = append(all, object{
				owner: owner, name: m.Path, key: strconv.Itoa(m.ID),
				evidence: fmt.Sprintf("%s (%s) is mounted, %s %s, which has no record", m.Path, m.Type, what, owner),
				fix:      "umount -l " + m.Path,
				does:     "unmounts " + m.Path,
				remove: func(context.Context) error {
					if err := f.Host.Detach(m.Path); err != nil {
						return err
					}
					// The mount point goes if nothing is in it. berth removes the rest at its next start.
					_ = os.Remove(m.Path)
					return nil
				},
			})
		}
	}
	return all, nil
}

// netns lists the pins of network namespaces. Those of other berths have other prefixes.
func netns(_ context.Context, f *Facts) ([]object, error) {
	prefix := "berth-" + f.Instance + "-"
	entries, err := os.ReadDir(f.NetNSDir)
	if err != nil {
		return nil, errs.IgnoreNotExist(err)
	}
	var all []object
	for _, entry := range entries {
		id, ours := strings.CutPrefix(entry.Name(), prefix)
		if !ours || strings.Contains(id, "-") { // the prefix alone may be that of an instance with a longer name
			continue
		}
		path := filepath.Join(f.NetNSDir, entry.Name())
		key, err := identity(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, object{
			owner: id, name: path, key: key,
			evidence: fmt.Sprintf("%s pins the network namespace of sandbox %s, which has no record", path, id),
			fix:      "umount " + path + " && rm " + path,
			does:     "unmounts and removes " + path,
			remove:   func(context.Context) error { return f.Host.RemoveNetNS(path) },
		})
	}
	return all, nil
}

// identity is the device and inode of a file: that of a namespace where one is mounted.
func identity(path string) (string, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", fmt.Errorf("cannot identify %s: %w", path, errs.Unsupported)
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino), nil
}
