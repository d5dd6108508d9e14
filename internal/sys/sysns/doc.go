// Package sysns holds what the kernel offers for namespaces: making, pinning and
// entering them, and what is configured inside of a network namespace.
package sysns
