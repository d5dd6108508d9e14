// Package sysproc wraps the kernel's calls for processes: pidfds, exit statuses, the
// state that a child inherits, and the privileges that a process drops.
package sysproc
