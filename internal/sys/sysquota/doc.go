// Package sysquota wraps the kernel's calls for projects of ext4 and xfs. A project is a number that files have. The file
// system counts what the files of each project take, and can limit it.
package sysquota
