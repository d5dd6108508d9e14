// Package sysmount wraps the kernel's calls for mounts: overlays, tmpfs, binds, id-mapped
// mounts, and their ends.
package sysmount
