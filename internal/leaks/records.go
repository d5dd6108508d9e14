package leaks

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// restart is the fix for what the start of berth removes itself.
const restart = "restart berth: its start removes what has no record"

// containers lists what the supervisor has. berth ends and removes at its start what it has no record of.
func containers(_ context.Context, f *Facts) ([]object, error) {
	ids, err := f.supervised()
	if err != nil {
		return nil, err
	}
	var all []object
	for _, id := range ids {
		path := filepath.Join(f.supervisedDir(), id)
		all = append(all, object{
			owner: id, name: id, key: path,
			evidence: "the supervisor has the container " + id + " (" + path + "), of which berth has no record", fix: restart,
		})
	}
	return all, nil
}

// attachments lists those that a sandbox without a record has.
func attachments(_ context.Context, f *Facts) ([]object, error) {
	var all []object
	for _, dir := range f.attachmentDirs() {
		found := map[string]bool{}
		if err := addRecords(found, dir); err != nil {
			return nil, err
		}
		for id := range found {
			path := filepath.Join(dir, id+".json")
			all = append(all, object{
				owner: id, name: path, key: path,
				evidence: path + " is an attachment to a network of sandbox " + id + ", of which berth has no record: its addresses and host ports are not free",
				fix:      "restart berth: its start detaches what has no record",
			})
		}
	}
	return all, nil
}

// files lists the directories of root filesystems on disk, of sandboxes and of containers.
func files(_ context.Context, f *Facts) ([]object, error) {
	if !f.Native {
		return nil, nil
	}
	var all []object
	for _, dir := range []string{
		filepath.Join(f.Root, "images", "containers"), filepath.Join(f.State, "engine", "bundles"), filepath.Join(f.State, "engine", "sandboxes"),
		filepath.Join(f.Root, "pods", "sandboxes"), filepath.Join(f.Root, "pods", "containers"),
	} {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, errs.IgnoreNotExist(err)
		}
		for _, entry := range entries {
			if strings.HasPrefix(entry.Name(), ".") || !entry.IsDir() {
				continue
			}
			owner, _, _ := strings.Cut(entry.Name(), "-")
			path := filepath.Join(dir, entry.Name())
			key, err := identity(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			all = append(all, object{owner: owner, name: path, key: key, evidence: path + " has files of " + owner + ", which has no record", fix: restart})
		}
	}
	return slices.Clip(all), nil
}
