// Package program has the program of the supervisor's children, cmd/berth-init. With the build tag
// berth_init it is embedded; the Makefile builds it first. Without the tag, as in tests of packages, the
// supervisor starts itself.
//
// What the program does not import is not initialised in each child before the child's own work.
package program
