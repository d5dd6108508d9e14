package check

import (
	"strings"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// maxFileName is the kernel's limit of one name in a path (NAME_MAX), in bytes.
const maxFileName = 255

// checkLength refuses a path that is longer than the kernel takes.
func checkLength(field, path string) error {
	if len(path) > request.MaxPath {
		return fielderror.Invalid(field, "is longer than %d bytes", request.MaxPath)
	}
	for name := range strings.SplitSeq(path, "/") {
		if len(name) > maxFileName {
			return fielderror.Invalid(field, "it has a name of more than %d bytes", maxFileName)
		}
	}
	return nil
}

func hasDotDot(p string) bool {
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}
