// Package sysfile wraps the kernel's calls for files: paths that stay beneath a directory,
// trees, writes that survive a crash, watches, extended attributes and devices.
package sysfile
