package attack

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Swapper is the path of the program that exchanges pairs of paths in bursts, until it is killed.
// The paths are its arguments.
const Swapper = "/swap"

// swap returns with the first exchange that fails.
func swap(paths []string) error {
	if len(paths) == 0 || len(paths)%2 != 0 {
		return fmt.Errorf("want pairs of paths, not %q", paths)
	}
	for pass := 0; ; pass++ {
		// A pause now and then, in either state, lets a start get further before the next exchange.
		if pass%2003 == 0 {
			time.Sleep(time.Duration(pass%7) * 5 * time.Millisecond)
		}
		for i := 0; i < len(paths); i += 2 {
			if err := unix.Renameat2(unix.AT_FDCWD, paths[i], unix.AT_FDCWD, paths[i+1], unix.RENAME_EXCHANGE); err != nil {
				return fmt.Errorf("cannot exchange %s and %s: %w", paths[i], paths[i+1], err)
			}
		}
	}
}
