package podrun

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/berthrun/berth/internal/cli/podrun/volumes"
	"github.com/berthrun/berth/internal/cli/podyaml"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// prepare makes what a container's configuration mounts: parts of volumes, and the file
// for its termination message. It replaces what an earlier attempt has left.
func (k *podRun) prepare(made *podyaml.ContainerSetup) error {
	for i := range made.SubPaths {
		if err := sysmount.UnmountBelow(made.SubPaths[i].Target); err != nil {
			return err
		}
		if err := volumes.BindSubPath(&made.SubPaths[i]); err != nil {
			return err
		}
	}
	if made.Message == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(made.Message), 0o755); err != nil {
		return fmt.Errorf("cannot make the file for the termination message: %w", err)
	}
	if err := os.WriteFile(made.Message, nil, 0o666); err != nil {
		return fmt.Errorf("cannot make the file for the termination message: %w", err)
	}
	return os.Chmod(made.Message, 0o666) // whatever the umask says, and the container's user is
}

// unprepare undoes prepare for an attempt that has gone.
func (k *podRun) unprepare(a *attempt) error {
	dir := filepath.Join(k.facts.Dir, "subpaths", a.spec.Name, strconv.FormatUint(uint64(a.n), 10))
	if err := sysmount.UnmountBelow(dir); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(dir), os.RemoveAll(podyaml.MessageFile(k.facts.Dir, a.spec.Name, a.n)))
}
