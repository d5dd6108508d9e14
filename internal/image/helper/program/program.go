// Package program has the program in which an image store unpacks layers and checks databases. With the build tag
// berth_unpack it is cmd/berth-unpack, which is embedded; the Makefile builds it first. Without the tag, as in tests of
// packages, it is berth itself.
//
// A process of berth initialises hundreds of packages before its own work, and touches six times as many pages of memory as
// one of cmd/berth-unpack. A pull starts one for each layer.
package program

// Name is the name of the program's processes.
const Name = "berth-unpack"

// Program is the program of the helper.
type Program interface {
	// Hold keeps what Use makes, from the first Use until release: several processes follow.
	Hold() (release func())
	// Use returns the path of the program, and the first arguments of its processes with their name. The path is valid until
	// release is called.
	Use() (path string, args []string, release func(), err error)
}

// Command is a program in a file, with its first arguments.
type Command []string

// Hold implements Program.
func (c Command) Hold() (release func()) { return func() {} }

// Use implements Program.
func (c Command) Use() (path string, args []string, release func(), err error) {
	return c[0], append([]string{}, c...), func() {}, nil
}

// Self is berth itself, which has the program as a hidden command.
func Self() Command { return Command{"/proc/self/exe", "unpack-layer"} }
