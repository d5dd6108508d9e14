// Package sysproc holds what the kernel offers for processes: pidfds, how they ended,
// what a child inherits, and what a process gives up.
package sysproc
