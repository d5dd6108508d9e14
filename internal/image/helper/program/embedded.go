//go:build berth_unpack

package program

import (
	_ "embed"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The Makefile builds it just before.
//
//go:embed berth-unpack
var embedded []byte

// Own returns the program that belongs to this berth.
func Own() Program { return newInMemory(embedded, forget, Self()) }

// forget drops the pages of the embedded program from the memory of this process, where a copy has brought them. Nobody
// writes to them, so the kernel reads them from berth's file again at the next copy.
func forget() {
	page := os.Getpagesize()
	start := (page - int(uintptr(unsafe.Pointer(&embedded[0]))%uintptr(page))) % page
	if end := start + (len(embedded)-start)/page*page; end > start {
		_ = unix.Madvise(embedded[start:end], unix.MADV_DONTNEED) // they stay in memory without it
	}
}
