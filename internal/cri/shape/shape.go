// Package shape refuses CRI requests with malformed fields: fields that are missing, out of
// range, or would break out of the line or the path that they are written to.
//
// It is the only check of the fields that it knows; the packages below cri trust them. The
// engine checks the meaning of values, and whether it can honour them. Errors have kind
// Invalid and begin with the field's name.
package shape

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/berthrun/berth/internal/errs"
)

// maxName is the longest name, namespace or uid in bytes, as Kubernetes has it.
const maxName = 253

// name refuses a name that is empty, would break a line, or looks like a path out of its
// directory. Names are not used in paths: files of a pod are named by its id.
func name(field, value string) error {
	switch {
	case value == "":
		return invalid("%s is empty", field)
	case len(value) > maxName:
		return invalid("%s is longer than %d characters", field, maxName)
	case climbs(value) || hasControl(value):
		return invalid("%s %q has a control character, or . or .. between slashes", field, value)
	}
	return nil
}

// climbs reports whether a name would lead elsewhere if it were used as a path.
func climbs(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == "." || part == ".." {
			return true
		}
	}
	return false
}

// texts refuses labels and annotations that cannot be shown. Values are the user's own and
// may have many lines.
func texts(field string, m map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if key == "" || hasControl(key) {
			return invalid("%s: the key %q is empty or contains a control character", field, key)
		}
		if strings.ContainsRune(m[key], 0) {
			return invalid("%s: the value of %q contains a NUL", field, key)
		}
	}
	return nil
}

// The kernel's limits of a path (PATH_MAX, without the NUL at its end) and of one name in it
// (NAME_MAX), in bytes.
const (
	maxPath     = 4095
	maxFileName = 255
)

// pathLength refuses a path that is longer than the kernel takes.
func pathLength(field, path string) error {
	if len(path) > maxPath {
		return invalid("%s: is longer than %d bytes", field, maxPath)
	}
	for name := range strings.SplitSeq(path, "/") {
		if len(name) > maxFileName {
			return invalid("%s: it has a name of more than %d bytes", field, maxFileName)
		}
	}
	return nil
}

func hasControl(s string) bool { return strings.ContainsFunc(s, unicode.IsControl) }

func hasDotDot(path string) bool { return slices.Contains(strings.Split(path, "/"), "..") }

// breaksLine reports whether r ends a word or a line of a file.
func breaksLine(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }

// breaksPath reports whether r cannot be part of one name in a path.
func breaksPath(r rune) bool { return r == ' ' || r == '/' || unicode.IsControl(r) }

// indexed spells a field of the i-th mount.
func indexed(i int, field string) string { return fmt.Sprintf("config.mounts[%d].%s", i, field) }

// invalid makes an error of kind Invalid; the text names the field.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errs.Invalid)
}
