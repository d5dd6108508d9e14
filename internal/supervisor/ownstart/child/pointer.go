package child

import "unsafe"

// pointer returns the address of b, for a system call that reads it.
func pointer(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }
