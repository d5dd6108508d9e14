// Package sysfd wraps the kernel's calls for descriptors: pipes, splices, sockets
// that carry descriptors, terminals, locks, and waiting for any of them. It knows no
// paths below a root, no processes, and no namespaces.
package sysfd
