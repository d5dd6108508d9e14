package attack

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Swapper is where a container finds the program to exchange pairs of paths,
// which are its arguments, as fast as it can until it is killed.
const Swapper = "/swap"

// swap returns with the first exchange that fails.
func swap(paths []string) error {
	if len(paths) == 0 || len(paths)%2 != 0 {
		return fmt.Errorf("want pairs of paths, not %q", paths)
	}
	for {
		for i := 0; i < len(paths); i += 2 {
			if err := unix.Renameat2(unix.AT_FDCWD, paths[i], unix.AT_FDCWD, paths[i+1], unix.RENAME_EXCHANGE); err != nil {
				return fmt.Errorf("cannot exchange %s and %s: %w", paths[i], paths[i+1], err)
			}
		}
	}
}
