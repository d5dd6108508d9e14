package legacy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// ClaimName is the file in an engine's directory of data with the name of the berth that adopts
// the engine's former pods. Several berths may use one engine, and labels of a container cannot
// be changed.
const ClaimName = "berth-adopter"

// Claim makes a berth the one that adopts the pods of an engine. Nil if it is that already. Kind
// Exists, with the name of the other one and what to do, if another berth is.
func Claim(engineRoot, instance string) error {
	file := filepath.Join(engineRoot, ClaimName)
	// A link appears with its content, and fails if the name is taken.
	temporary, err := os.CreateTemp(engineRoot, ClaimName+"-*")
	if err != nil {
		return fmt.Errorf("cannot claim the pods of the Docker engine: %w", errs.OfDisk(err))
	}
	defer os.Remove(temporary.Name())
	_, err = temporary.WriteString(instance + "\n")
	if err = errors.Join(err, temporary.Close()); err != nil {
		return fmt.Errorf("cannot claim the pods of the Docker engine: %w", errs.OfDisk(err))
	}
	err = os.Link(temporary.Name(), file)
	if !errors.Is(err, os.ErrExist) {
		if err != nil {
			return fmt.Errorf("cannot claim the pods of the Docker engine: %w", errs.OfDisk(err))
		}
		return nil
	}
	holder, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("cannot read which berth adopts the pods of the Docker engine: %w", err)
	}
	if got := strings.TrimSpace(string(holder)); got != instance {
		return fmt.Errorf("berth %q adopts the pods of this Docker engine, and this is berth %q; remove %s if the other one is gone: %w",
			got, instance, file, errs.Exists)
	}
	return nil
}
