// Package sysfile holds what the kernel offers for files: paths that stay beneath a directory,
// trees, writes that survive a crash, watches, extended attributes and devices.
package sysfile
