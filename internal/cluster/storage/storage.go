// Package storage is the default StorageClass of a cluster: its manifest and its names. A volume is
// a directory below /var of the node that its first pod was scheduled to, so it outlives restarts
// of that node, and ends with the node. Package provisioner creates and removes these directories;
// it runs on every node.
package storage

import _ "embed"

const (
	// Class is the name of the StorageClass, as kind has it.
	Class = "standard"
	// Provisioner is the name of the provisioner of that class.
	Provisioner = "berth.run/local"
	// Image is the image of provisioners. It is empty: they mount the node's own program, so that
	// no node stores a copy of it.
	Image = "localhost/berth/storage:1"
	// Dir has the volumes of a node, one directory each.
	Dir = "/var/lib/berth-volumes"
)

//go:embed manifest.yaml
var manifest string

// Manifest is the manifest of the StorageClass, for kubectl apply.
func Manifest() string { return manifest }
