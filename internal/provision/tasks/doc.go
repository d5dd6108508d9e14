// Package tasks has one type for each kind of task: plain structs whose fields describe what the
// machine should have. The zero value of a field is its usual default, which its comment names.
//
// Every type has a field M of type provision.Meta, so that a literal sets needs and restarts.
package tasks

import (
	"io/fs"

	"github.com/berthrun/berth/internal/provision"
)

// Default modes.
const (
	defaultFileMode fs.FileMode = 0o644
	defaultDirMode  fs.FileMode = 0o755
)

// Each type implements what the reconciler calls.
var (
	_ provision.Task      = File{}
	_ provision.Task      = Dir{}
	_ provision.Task      = Data{}
	_ provision.Task      = Link{}
	_ provision.Task      = JSONKeys{}
	_ provision.Task      = Packages{}
	_ provision.Restarter = Unit{}
	_ provision.Task      = Sysctls{}
	_ provision.Task      = Modules{}
	_ provision.Preparer  = Asset{}
	_ provision.Task      = User{}
	_ provision.Task      = Group{}
	_ provision.Task      = Command{}
	_ provision.Task      = Swap{}
	_ provision.Preparer  = Packages{}
)
