// Package version is the version of this berth.
package version

import (
	"fmt"
	"runtime"
)

// Version, Commit and Date are set by the linker (see the Makefile).
var (
	//nolint:gochecknoglobals // the linker can only set variables
	Version = "0.1.0-dev"
	//nolint:gochecknoglobals // as above
	Commit = "unknown"
	//nolint:gochecknoglobals // as above
	Date = "unknown"
)

// String is one line for people.
func String() string {
	return fmt.Sprintf("%s (commit %s, built %s, %s, %s/%s)", Version, Commit, Date, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
