// Package sysfile holds what the kernel offers for file systems: mounts, overlays, paths
// that stay beneath a directory, watches, extended attributes and id-mapped mounts.
package sysfile
