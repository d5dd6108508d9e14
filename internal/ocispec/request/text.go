package request

import (
	"slices"
	"strings"
	"unicode"
)

// HasControl reports whether s has a character that breaks a line or ends a C string.
func HasControl(s string) bool {
	return strings.ContainsFunc(s, unicode.IsControl)
}

// MountedByRuntime reports whether the runtime mounts something at a path of the container
// or above it. The container's root counts.
func MountedByRuntime(at string) bool {
	return at == "/" || slices.ContainsFunc([]string{"/proc", "/sys", "/dev", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf"},
		func(above string) bool { return IsBelow(at, above) })
}

// IsBelow reports whether at is the path above, or below it.
func IsBelow(at, above string) bool {
	return at == above || strings.HasPrefix(at, strings.TrimSuffix(above, "/")+"/")
}

// IsAll reports whether s is not "" and has no other characters than those of chars.
func IsAll(s, chars string) bool { return s != "" && OnlyOf(s, chars) }

// OnlyOf reports whether s has no other characters than those of chars.
func OnlyOf(s, chars string) bool { return strings.Trim(s, chars) == "" }

// MaxPath is the kernel's limit of a path in bytes (PATH_MAX, without the NUL at its end).
const MaxPath = 4095
