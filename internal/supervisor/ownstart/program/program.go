// Package program has the program of the supervisor's children, cmd/berth-init. With the build tag
// berth_init it is embedded, once built without cgo, which begins sooner, and once with it. The Makefile
// builds both first. Without the tag, as in tests of packages, the supervisor starts itself.
//
// What the program does not import is not initialised in each child before the child's own work.
package program
