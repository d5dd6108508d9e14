// Package sysmount holds what the kernel offers for mounts: overlays, tmpfs, binds, id-mapped
// mounts, and their ends.
package sysmount
