// Package sysns wraps the kernel's calls for namespaces: it makes, pins and enters them,
// and configures the inside of a network namespace.
package sysns
