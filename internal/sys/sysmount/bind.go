package sysmount

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// BindFile mounts an open file or directory on target, which is of the same kind and
// exists. What its path leads to by now does not matter.
func BindFile(f *os.File, target string) error {
	source := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("cannot mount %s on %s: %w", f.Name(), target, err)
	}
	return nil
}
