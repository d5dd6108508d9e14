// Package bundle keeps the bundles of containers: directories with the OCI spec.
package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
)

// Store is the directory of the bundles, one directory a container.
type Store struct{ Root string }

// Dir is the bundle of a container.
func (s Store) Dir(id string) string { return filepath.Join(s.Root, id) }

const (
	// specFile is the OCI spec in a bundle.
	specFile = "config.json"
	// processFile is the process in that spec. Exec reads it and not the whole spec, which
	// is large: most of it is the seccomp profile.
	processFile = "process.json"
)

// Make makes a container's bundle, without a spec.
func (s Store) Make(id string) error {
	if err := os.MkdirAll(s.Dir(id), 0o700); err != nil {
		return fmt.Errorf("cannot make the bundle: %w", err)
	}
	return nil
}

// Write writes the spec into a bundle. It makes the bundle where there is none.
func (s Store) Write(id string, spec *specs.Spec) error {
	dir := s.Dir(id)
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
	if err := errors.Join(write(processFile, spec.Process), write(specFile, spec)); err != nil {
		return fmt.Errorf("cannot write the bundle of %s: %w", id, err)
	}
	return nil
}

// ReadProcess reads a container's own process. Kind NotFound when there is no bundle. The
// bundles of older versions have the whole spec alone.
func (s Store) ReadProcess(id string) (*specs.Process, error) {
	var spec struct {
		Process *specs.Process `json:"process"`
	}
	err := s.read(id, processFile, &spec.Process)
	if errors.Is(err, errs.NotFound) {
		err = s.read(id, specFile, &spec)
	}
	if err != nil {
		return nil, err
	}
	if spec.Process == nil {
		return nil, fmt.Errorf("the bundle of container %s has no process", id)
	}
	return spec.Process, nil
}

// ReadSpec reads a container's OCI spec. Kind NotFound when there is no bundle.
func (s Store) ReadSpec(id string) (*specs.Spec, error) {
	spec := &specs.Spec{}
	return spec, s.read(id, specFile, spec)
}

// Exists reports whether there is a bundle of a container.
func (s Store) Exists(id string) bool {
	_, err := os.Lstat(s.Dir(id))
	return err == nil
}

// Remove removes a container's bundle. Nil when there is none.
func (s Store) Remove(id string) error {
	if id == "" || strings.ContainsRune(id, '/') {
		return fmt.Errorf("cannot remove the bundle of %q: %w", id, errs.Invalid)
	}
	if err := os.RemoveAll(s.Dir(id)); err != nil {
		return fmt.Errorf("cannot remove the bundle of %s: %w", id, err)
	}
	return nil
}

// read decodes a file of a container's bundle. Kind NotFound when it is not there.
func (s Store) read(id, name string, into any) error {
	data, err := os.ReadFile(filepath.Join(s.Dir(id), name))
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
