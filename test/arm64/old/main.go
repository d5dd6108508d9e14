// Program old prints "old" if the emulator that runs it has no openat2, as qemu before 9.2. The tests of arm64 ask this
// for the emulator at hand.
package main

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

func main() {
	fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH})
	if err == nil {
		_ = unix.Close(fd)
	}
	if errors.Is(err, unix.ENOSYS) {
		fmt.Println("old")
	}
}
