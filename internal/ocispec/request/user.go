package request

import (
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
)

func isRange(err error) bool { return errors.Is(err, strconv.ErrRange) }

// MaxID is the largest user or group id. A larger one does not fit the type that some
// programs and other runtimes use, and would wrap around.
const MaxID = math.MaxInt32

// ParseUser reads a user or a group: a number is an id, and a value that no parser takes for
// a number is a name. name is "" for an id. Kind Invalid for everything between, as
// "4294967297" or "0x0": programs disagree about it.
func ParseUser(field, value string) (name string, id uint32, err error) {
	if n, err := strconv.ParseUint(value, 10, 64); err == nil || IsAll(value, "0123456789") {
		if err != nil || n > MaxID {
			return "", 0, fielderror.Invalid(field, "%s: ids are in the range 0-%d", value, MaxID)
		}
		return "", uint32(n), nil
	}
	if looksNumeric(value) {
		return "", 0, fielderror.Invalid(field, "%q is neither an id nor a name", value)
	}
	if HasControl(value) || strings.ContainsAny(value, " :/") {
		return "", 0, fielderror.Invalid(field, "%q is not a name", value)
	}
	return value, 0, nil
}

// looksNumeric reports whether some parser takes s for a number: with a sign, spaces, an
// exponent or another base.
func looksNumeric(s string) bool {
	s = strings.TrimSpace(s)
	if s == "" {
		return true
	}
	if strings.ContainsRune("+-.", rune(s[0])) {
		return true
	}
	if s[0] < '0' || s[0] > '9' {
		return false
	}
	if _, err := strconv.ParseFloat(s, 64); err == nil || isRange(err) {
		return true
	}
	_, err := strconv.ParseInt(s, 0, 64)
	return err == nil || isRange(err)
}

// MaxGroups is how many groups the kernel lets a process have (NGROUPS_MAX).
const MaxGroups = 65536
