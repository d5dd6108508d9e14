// Package fielderror makes errors about a field of a CRI request. Each begins with the
// field's name as the request spells it, and has a kind of package errs.
package fielderror

import (
	"fmt"
	"strconv"

	"github.com/berthrun/berth/internal/errs"
)

// Invalid is an error of kind Invalid: the value of the field is wrong.
func Invalid(field, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", field, fmt.Sprintf(format, args...), errs.Invalid)
}

// Unsupported is an error of kind Unsupported: the value of the field is right, and berth or
// this host cannot honour it.
func Unsupported(field, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", field, fmt.Sprintf(format, args...), errs.Unsupported)
}

// Index spells the i-th element of a list, or a field of that element.
func Index(list string, i int, field string) string {
	name := list + "[" + strconv.Itoa(i) + "]"
	if field != "" {
		name += "." + field
	}
	return name
}
