package attack

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Swapper is where a container finds the program to exchange pairs of paths in bursts,
// which are its arguments, until it is killed.
const Swapper = "/swap"

// swap returns with the first exchange that fails.
func swap(paths []string) error {
	if len(paths) == 0 || len(paths)%2 != 0 {
		return fmt.Errorf("want pairs of paths, not %q", paths)
	}
	for pass := 0; ; pass++ {
		// A rest now and then, at times as links and at times as what they were, lets a
		// start come further before the next exchange.
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
