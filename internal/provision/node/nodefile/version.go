package nodefile

import (
	"fmt"
	"regexp"
	"strconv"
)

// Version is a version of a runtime, as far as it matters for a configuration.
type Version struct{ Major, Minor, Patch int }

// ParseVersion reads 2.4, 2.4.2, v2.4.2, 2.4.2-rc.1, and what distributions make of
// them, such as 1.6.20~ds1-1+deb12u3.
func ParseVersion(text string) (Version, error) {
	m := regexp.MustCompile(`^v?(\d{1,5})\.(\d{1,5})(?:\.(\d{1,5}))?(?:[-~+][0-9A-Za-z.~+-]*)?$`).FindStringSubmatch(text)
	if m == nil {
		return Version{}, fmt.Errorf("%q: want a version such as 2.4.2", text)
	}
	var v Version
	for i, part := range []*int{&v.Major, &v.Minor, &v.Patch} {
		*part, _ = strconv.Atoi(m[i+1]) // digits, or empty for 0
	}
	return v, nil
}

// Less compares two versions.
func (v Version) Less(major, minor int) bool {
	return v.Major < major || v.Major == major && v.Minor < minor
}

// IsZero reports whether no version is known.
func (v Version) IsZero() bool { return v == Version{} }

func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }
