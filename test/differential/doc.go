// Package differential has the tests that compare the two starters of package
// internal/supervisor/server/ociruntime: berth's own init and libcontainer. Each test starts the same
// container, or the same process in a container, in two supervisors side by side, and compares what a
// program inside sees of itself, and what the host sees of the program. See docs/architecture.md.
package differential
