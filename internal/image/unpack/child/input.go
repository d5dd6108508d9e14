package child

import (
	"io"
	"os"
	"syscall"
	"time"
)

// input returns the layer, which is standard input. A pipe gets the bytes of a layer while they are fetched. Its reads can be
// interrupted, so that a helper that has its answer does not wait for the download.
func input() *os.File {
	fi, err := os.Stdin.Stat()
	if err != nil || fi.Mode()&os.ModeNamedPipe == 0 || syscall.SetNonblock(syscall.Stdin, true) != nil {
		return os.Stdin
	}
	return os.NewFile(uintptr(syscall.Stdin), "layer")
}

// interrupt ends a read of a layer that waits for more bytes, and those after it. Other files have all their bytes.
func interrupt(layer io.Reader) {
	if file, ok := layer.(*os.File); ok {
		_ = file.SetReadDeadline(time.Unix(1, 0)) // a regular file has none
	}
}
