// Package hostpath finds the sources of mounts on the host, and makes those that are
// missing.
//
// A missing source becomes a directory, as hostPath volumes expect, but only after all
// other checks of the container. When the container is refused after that, the
// directories are removed, except those that another container has begun to use.
package hostpath

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/probe"
)

// Place is where a source is or will be, links resolved, and how much of that exists.
type Place struct{ Path, Exists string }

// Missing is a source that does not exist.
type Missing struct {
	// Field is the request's.
	Field string
	Path  string
}

// Resolve finds a source, or else the directory below which it will be created. Kind
// Invalid for an impossible path, Unavailable for one on a file system that hangs.
func Resolve(from string) (Place, error) {
	below := ""
	for at := filepath.Clean(from); ; at = filepath.Dir(at) {
		resolved, err := filepath.EvalSymlinks(at)
		switch {
		case err == nil && below == "":
			return Place{resolved, resolved}, nil
		case err == nil:
			if info, err := os.Stat(resolved); err != nil || !info.IsDir() {
				return Place{}, unusable(from, cmp.Or[error](err, syscall.ENOTDIR))
			}
			return Place{filepath.Join(resolved, below), resolved}, nil
		case !errors.Is(err, fs.ErrNotExist) || at == "/":
			return Place{}, unusable(from, err)
		}
		if _, err := os.Lstat(at); err == nil {
			return Place{}, unusable(from, fmt.Errorf("%s is a link to what does not exist", at))
		}
		below = filepath.Join(filepath.Base(at), below)
	}
}

func unusable(from string, err error) error {
	kind := errs.Invalid
	for _, dead := range []error{syscall.ESTALE, syscall.EIO, syscall.ENOTCONN, syscall.EHOSTDOWN} {
		if errors.Is(err, dead) {
			kind = errs.Unavailable
		}
	}
	return fmt.Errorf("cannot use the mount source %s: %w: %w", from, err, kind)
}

// Made records the directories that are made for one container. Its methods are called one
// after the other.
type Made struct {
	Probes *probe.Pool
	// Claims are those of the engine.
	Claims *Claims
	// File is the record. Keep removes it.
	File string
}

// Make makes the directories that are missing. It records them first.
func (m Made) Make(ctx context.Context, missing []Missing) error {
	var made []string
	for _, source := range missing {
		absent, err := probe.Ask(ctx, m.Probes, "look at the mount source "+source.Path, func() ([]string, error) {
			return absentIn(source.Path), nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", source.Field, err)
		}
		made = append(made, absent...)
	}
	m.Claims.add(m.File, made)
	for _, source := range missing {
		m.Claims.use(m.File, source.Path) // another container may have made it meanwhile
	}
	if len(made) == 0 {
		return nil
	}
	data, err := json.Marshal(made)
	if err == nil {
		err = os.WriteFile(m.File, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot record which mount sources are made: %w", err)
	}
	for _, source := range missing {
		_, err := probe.Ask(ctx, m.Probes, "make the mount source "+source.Path, func() (struct{}, error) {
			return struct{}{}, os.MkdirAll(source.Path, 0o755)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", source.Field, unusable(source.Path, err))
		}
	}
	return nil
}

// absentIn lists what of a path does not exist, the topmost first.
func absentIn(path string) []string {
	var absent []string
	for ; path != "/"; path = filepath.Dir(path) {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		absent = append(absent, path)
	}
	slices.Reverse(absent)
	return absent
}

// Keep removes the record, so that the directories stay.
func (m Made) Keep() error {
	if err := errs.IgnoreNotExist(os.Remove(m.File)); err != nil {
		return fmt.Errorf("cannot record that the mount sources stay: %w", err)
	}
	m.Claims.end(m.File)
	return nil
}

// Remove removes the directories, as far as they are empty and no other container has begun to use them. Nil when there
// are none.
func (m Made) Remove(ctx context.Context) error {
	if err := m.remove(ctx); err != nil {
		return err
	}
	m.Claims.end(m.File)
	return nil
}

func (m Made) remove(ctx context.Context) error {
	data, err := os.ReadFile(m.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read which mount sources were made: %w", err)
	}
	var made []string
	if json.Unmarshal(data, &made) != nil {
		return nil // killed while it was written: nothing was made yet
	}
	slices.SortFunc(made, func(a, b string) int { return strings.Count(b, "/") - strings.Count(a, "/") })
	for _, dir := range made {
		if m.Claims.isShared(dir) {
			continue
		}
		_, err := probe.Ask(ctx, m.Probes, "remove the mount source "+dir, func() (struct{}, error) {
			return struct{}{}, removeEmpty(dir)
		})
		if err != nil {
			return fmt.Errorf("cannot remove a mount source that was made: %w", err)
		}
	}
	return nil
}

// removeEmpty removes a directory unless it is in use.
func removeEmpty(dir string) error {
	err := syscall.Rmdir(dir)
	for _, used := range []error{syscall.ENOENT, syscall.ENOTDIR, syscall.ENOTEMPTY, syscall.EBUSY} {
		if errors.Is(err, used) {
			return nil
		}
	}
	return err
}
