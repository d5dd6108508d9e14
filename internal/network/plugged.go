package network

import "context"

// Checker is a Network with attachments that plugins have made.
type Checker interface {
	// Check has the plugins compare sandboxes' networks with what they made of them, all with
	// no id given; it changes nothing. The error, of kind NotFound, is for a sandbox that is
	// not attached.
	Check(ctx context.Context, sandboxes []string) ([]Checked, error)
}

// Plugged is a Network whose work plugins do.
type Plugged interface {
	Network
	Checker
	// Networks describes the networks in use, with their plugins. There may be networks and
	// an error: the fault of other configurations.
	Networks(ctx context.Context) ([]Described, error)
}

// Checked is what a check of one attachment found.
type Checked struct {
	SandboxID string
	// Namespace and Name are the pod's.
	Namespace, Name string
	// Network and Interface are empty where the check did not get so far.
	Network, Interface string
	// Skipped is why there was no check, "" for a check that ran.
	Skipped string
	// Fault is what is not as it was made, or why the sandbox cannot be detached, nil for nothing.
	Fault error
}

// Described is a network in use.
type Described struct {
	Name string
	// File is that of its configuration, CNIVersion the version that it is written for.
	File, CNIVersion string
	// Interface is the name of the pods' end.
	Interface string
	Plugins   []Plugin
}

// Plugin is a plugin of a network in use.
type Plugin struct {
	Type string
	// Path is that of the program, "" for a plugin that runs in process and has none.
	Path string
	// InProcess is whether it runs inside berth; Why is the reason, for people.
	InProcess bool
	Why       string
	// Versions of CNI that it supports.
	Versions []string
	// Build is the program's Go module with its version, "" if the program does not say.
	Build string
	// Fault is why the plugin cannot be used, nil if it can.
	Fault error
}
