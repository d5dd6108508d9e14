// Package translate turns CRI requests into requests of the Docker Engine API.
//
// It is pure: the same input always gives the same request. What must be looked up on the host
// or in the engine comes in as data. It also refuses what an engine cannot honour.
package translate

import (
	"github.com/berthrun/berth/internal/docker/api"
)

// Facts are what an engine can do.
type Facts struct{ api.Facts }

// FactsOf returns the facts that an engine has reported.
func FactsOf(found *api.Facts) Facts { return Facts{*found} }

// RecursiveReadOnly reports whether mounts can be read-only with all mounts below them.
func (f *Facts) RecursiveReadOnly() bool { return f.has(apiRecursiveReadOnly) }

// Before reports whether the engine's API is older than a version.
func (f *Facts) Before(version string) bool { return !f.has(version) }

// has reports whether the engine's API has at least a version.
func (f *Facts) has(version string) bool {
	return api.AtLeast(f.APIVersion, version)
}
