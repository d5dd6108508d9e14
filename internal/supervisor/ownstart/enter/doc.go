// Package enter is the way of a child into a PID namespace that containers see, into a user namespace and
// into a container's cgroup, before Go's runtime starts: see enter.c. Package fork orders it. A program that
// is built without cgo does not have it.
package enter
