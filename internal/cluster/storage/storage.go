// Package storage is the default StorageClass of a cluster: what is installed for it, and
// the names that belong to it. A volume is a directory below /var of the node that its first
// pod was put on, so it outlives that node's restarts, and ends with the node. What makes
// and removes these directories is in provision; it runs on every node.
package storage

import _ "embed"

const (
	// Class is the name of the StorageClass, as kind has it.
	Class = "standard"
	// Provisioner is who makes volumes of that class.
	Provisioner = "berth.run/local"
	// Image is the image that provisioners run in. It is empty: their program is the node's
	// own, which they mount, so that no copy of it has to be stored on every node.
	Image = "localhost/berth/storage:1"
	// Dir has the volumes of a node, a directory each.
	Dir = "/var/lib/berth-volumes"
)

//go:embed manifest.yaml
var manifest string

// Manifest is what kubectl applies to have the StorageClass in a cluster.
func Manifest() string { return manifest }
