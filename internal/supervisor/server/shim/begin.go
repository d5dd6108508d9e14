package shim

import (
	"fmt"
	"os"
	"path/filepath"
)

// Begin serves the events of the shims that a predecessor has started.
func (s *Shims) Begin() error {
	pods, err := os.ReadDir(filepath.Join(s.dir, groupsName))
	if err != nil {
		return fmt.Errorf("cannot list the shims: %w", err)
	}
	if len(pods) == 0 {
		return nil
	}
	return s.listen()
}
