package bundle

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/errs"
)

// maxRecords is how many records of one kind a bundle has, the newest.
const maxRecords = 2000

// Files returns the sources of the configuration and of the records on disk. file is the configuration; cfg is what it
// says, or the defaults if it cannot be read, with the directories of the running daemon; fault is why it cannot be read.
func Files(file string, cfg *config.Daemon, fault error) []Source {
	return []Source{
		{Name: "configuration", Collect: func(_ context.Context, add Add) error { return collectConfig(file, cfg, fault, add) }},
		{Name: "registries", Collect: func(_ context.Context, add Add) error {
			return collectTree(cfg.Image.RegistryConfigDirs, "config/registries", add, func(name string) (Format, bool) {
				return TOML, filepath.Base(name) == "hosts.toml"
			})
		}},
		{Name: "CNI configuration", Collect: func(_ context.Context, add Add) error {
			return collectTree([]string{cfg.Network.ConfDir}, "config/cni", add, func(name string) (Format, bool) {
				return JSON, slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(name))
			})
		}},
		{Name: "records", Collect: func(_ context.Context, add Add) error { return collectRecords(cfg, add) }},
	}
}

func collectConfig(file string, cfg *config.Daemon, fault error, add Add) error {
	if fault == nil {
		return add("config/berth.toml", TOML, []byte(config.Sample(config.WithoutSecrets(cfg))))
	}
	// As it is: the fault may be what is looked for.
	content, err := readBounded(file)
	if err != nil {
		return errors.Join(fault, err)
	}
	return errors.Join(add("config/berth.toml", TOML, content), fmt.Errorf("the file is in the bundle, and berth cannot use it: %w", fault))
}

// collectTree adds the files below directories that want chooses. A directory that is missing has none.
func collectTree(dirs []string, below string, add Add, want func(name string) (Format, bool)) error {
	var failed []error
	for _, dir := range dirs {
		if dir == "" {
			continue
		}
		failed = append(failed, filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || entry.IsDir() {
				return err
			}
			format, wanted := want(name)
			if !wanted {
				return nil
			}
			content, err := readBounded(name)
			if err != nil {
				return err
			}
			return add(below+name, format, content)
		}))
	}
	return errors.Join(failed...)
}

// collectRecords adds the records of pods, tombstones, attachments and what was quarantined.
func collectRecords(cfg *config.Daemon, add Add) error {
	var failed []error
	for _, of := range []struct{ base, dir string }{
		{cfg.State, "pods/sandboxes"},
		{cfg.State, "pods/containers"},
		{cfg.Root, "pods/tombstones"},
		{cfg.Root, "pods/attachments"},
		{cfg.Root, "pods/quarantine"},
	} {
		failed = append(failed, collectNewest(filepath.Join(of.base, of.dir), "records/"+filepath.Base(of.dir), add))
	}
	return errors.Join(failed...)
}

// collectNewest adds the newest files of a directory.
func collectNewest(dir, below string, add Add) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read records: %w", err)
	}
	var files []fs.FileInfo
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			files = append(files, info)
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int {
		return cmp.Or(b.ModTime().Compare(a.ModTime()), strings.Compare(a.Name(), b.Name()))
	})
	var failed []error
	if left := len(files) - maxRecords; left > 0 {
		failed = append(failed, fmt.Errorf("%d older files of %s are left out: %w", left, dir, errs.Exhausted))
		files = files[:maxRecords]
	}
	for _, info := range files {
		content, err := readBounded(filepath.Join(dir, info.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		switch {
		case err != nil:
		case json.Valid(content):
			err = add(below+"/"+info.Name(), JSON, content)
		default: // secrets are found by the names of fields
			err = add(below+"/"+info.Name()+".txt", Text, fmt.Appendf(nil, "%d bytes that are no JSON are left out; %s has them\n", len(content), filepath.Join(dir, info.Name())))
		}
		if err != nil {
			return errors.Join(append(failed, err)...)
		}
	}
	return errors.Join(failed...)
}

// readBounded reads at most maxRead bytes of a file.
func readBounded(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxRead))
}
