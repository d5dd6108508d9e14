package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
)

const (
	// bundleFile is the OCI spec in a bundle.
	bundleFile = "config.json"
	// processFile is the process in that spec. Exec reads it, and not the whole spec, of
	// which the seccomp profile is the most.
	processFile = "process.json"
)

// makeBundle makes the container's bundle, without a spec.
func (e *Engine) makeBundle(_ context.Context, c *creation) error {
	if err := os.MkdirAll(e.bundleDir(c.ID), 0o700); err != nil {
		return fmt.Errorf("cannot make the bundle: %w", err)
	}
	return nil
}

// writeBundle writes the spec into a bundle, which it makes where there is none.
func (e *Engine) writeBundle(id string, spec *specs.Spec) error {
	dir := e.bundleDir(id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot make the bundle of %s: %w", id, err)
	}
	write := func(name string, part any) error {
		data, err := json.Marshal(part)
		if err != nil {
			return err
		}
		// The environment is in both.
		return os.WriteFile(filepath.Join(dir, name), data, 0o600)
	}
	if err := errors.Join(write(processFile, spec.Process), write(bundleFile, spec)); err != nil {
		return fmt.Errorf("cannot write the bundle of %s: %w", id, err)
	}
	return nil
}

// readProcess reads a container's own process from its bundle. Kind NotFound when
// there is no bundle. The bundles of older versions have the whole spec alone.
func (e *Engine) readProcess(id string) (*specs.Process, error) {
	var spec struct {
		Process *specs.Process `json:"process"`
	}
	err := e.readBundle(id, processFile, &spec.Process)
	if errors.Is(err, errs.NotFound) {
		err = e.readBundle(id, bundleFile, &spec)
	}
	if err != nil {
		return nil, err
	}
	if spec.Process == nil {
		return nil, fmt.Errorf("the bundle of container %s has no process", id)
	}
	return spec.Process, nil
}

func (e *Engine) hasBundle(id string) bool {
	_, err := os.Lstat(e.bundleDir(id))
	return err == nil
}

func (e *Engine) removeBundle(_ context.Context, id string) error {
	if id == "" || strings.ContainsRune(id, '/') {
		return fmt.Errorf("cannot remove the bundle of %q: %w", id, errs.Invalid)
	}
	if err := os.RemoveAll(e.bundleDir(id)); err != nil {
		return fmt.Errorf("cannot remove the bundle of %s: %w", id, err)
	}
	return nil
}

// readBundle decodes a file of a container's bundle. Kind NotFound when it is not there.
func (e *Engine) readBundle(id, name string, into any) error {
	data, err := os.ReadFile(filepath.Join(e.bundleDir(id), name))
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("container %s: %w", id, errs.NotFound)
	}
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		return fmt.Errorf("cannot read the bundle of container %s: %w", id, err)
	}
	return nil
}
