package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/decryption"
	"github.com/berthrun/berth/internal/image/helper/program"
	"github.com/berthrun/berth/internal/image/preload"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// MakePreloaded writes a preloaded directory (see package preload) of the images of archives,
// complete or not at all, for the platform of the host and for others; see image.ParsePlatform. helper is as in Config. Kind Exists when dir is there, Invalid for a
// bad archive.
func MakePreloaded(ctx context.Context, dir string, archives, others []string, helper program.Program, log *slog.Logger) (_ []image.Image, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(dir); err == nil {
		return nil, fmt.Errorf("%s is there already: %w", dir, errs.Exists)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	// On the same file system: what is unpacked is moved.
	work, err := os.MkdirTemp(filepath.Dir(dir), ".preloaded-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sysfile.RemoveTree(context.WithoutCancel(ctx), work)) }()
	made := filepath.Join(work, "made")
	list, err := makePreloaded(ctx, made, archives, Config{
		Root: filepath.Join(work, "store"), State: filepath.Join(work, "state"), UnpackHelper: helper, Log: log,
		PullRules:   PullRules{Platforms: others},
		Snapshotter: OverlaySnapshotter, // the layers are for overlays, wherever they are made
	})
	if err != nil {
		return nil, err
	}
	return list, os.Rename(made, dir)
}

func makePreloaded(ctx context.Context, made string, archives []string, cfg Config) (_ []image.Image, err error) {
	s, err := Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for _, name := range archives {
		err := s.importFile(ctx, name)
		var locked *decryption.LockedError
		if errors.As(err, &locked) {
			err = fmt.Errorf("the archive has an encrypted image, and in a preloaded directory its layers would lie unpacked; import it (image.import_dirs): %w", errs.Unsupported)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	list, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	return list, preload.LayOut(ctx, s.db, list, made)
}

func (s *Images) importFile(ctx context.Context, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = s.Import(ctx, file, "", true, nil)
	return err
}
