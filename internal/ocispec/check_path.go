package ocispec

import "strings"

// The kernel's limits of a path (PATH_MAX, without the NUL at its end) and of a name in
// it (NAME_MAX).
const (
	maxPath     = 4095
	maxFileName = 255
)

// checkLength refuses a path that is longer than the kernel takes.
func checkLength(field, path string) error {
	if len(path) > maxPath {
		return invalid(field, "is longer than %d bytes", maxPath)
	}
	for name := range strings.SplitSeq(path, "/") {
		if len(name) > maxFileName {
			return invalid(field, "it has a name of more than %d bytes", maxFileName)
		}
	}
	return nil
}
