// Package privatefile writes files for their owner only.
package privatefile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Write replaces a file, so that the new one has this mode.
func Write(file string, content []byte, mode os.FileMode) error {
	temporary, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-*")
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", file, err)
	}
	_, err = temporary.Write(content)
	err = errors.Join(err, temporary.Chmod(mode), temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), file)
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", file, errors.Join(err, os.Remove(temporary.Name())))
	}
	return nil
}
