package order

import (
	"github.com/berthrun/berth/internal/supervisor/ownstart/codec"
	"github.com/berthrun/berth/internal/supervisor/ownstart/finish"
)

// Exec is the order to become a process of a container that runs. The child has the container's
// namespaces already, all but those of Join. Descriptors are numbers of those that come with the
// order, -1 for none. The child answers with Failed alone: the execve closes the socket.
type Exec struct {
	// Tasks are files of the cgroups to join: "tasks" of v1, or "cgroup.procs" of v2.
	Tasks []int
	// Init is a pidfd of the container's init. Join are the namespaces of it to join: flags
	// (CLONE_NEWNS, ...).
	Init, Join int
	// Spaces are files of namespaces to join after those of Init. Init is -1 then if there is none of it: a
	// child in a user namespace may not be allowed to look at the init, but may join these.
	Spaces []int
	// Proc is the root directory of a procfs of the host.
	Proc int
	// Pidfd is a socket for the child's own pidfd.
	Pidfd int
	// Console is a socket for the master of the terminal. Width and Height are 0 to keep the
	// terminal's own.
	Console       int
	Width, Height int
	Process       *finish.Process
}

// numbers are the fields that are numbers, in the order of their encoding.
func (e *Exec) numbers() []*int {
	return []*int{&e.Init, &e.Join, &e.Proc, &e.Pidfd, &e.Console, &e.Width, &e.Height}
}

// Descriptors are the fields that are descriptors.
func (e *Exec) Descriptors() []*int {
	all := []*int{&e.Init, &e.Proc, &e.Pidfd, &e.Console}
	for i := range e.Tasks {
		all = append(all, &e.Tasks[i])
	}
	for i := range e.Spaces {
		all = append(all, &e.Spaces[i])
	}
	return all
}

// Encode returns the bytes that DecodeExec reads.
func (e *Exec) Encode() []byte {
	var w codec.Writer
	for _, list := range [][]int{e.Tasks, e.Spaces} {
		w.Uint(uint64(len(list)))
		for _, fd := range list {
			w.Int(fd)
		}
	}
	for _, v := range e.numbers() {
		w.Int(*v)
	}
	e.Process.Encode(&w)
	return w.Encoded()
}

// DecodeExec reads what Encode has written. The filter of the process refers to b.
func DecodeExec(b []byte) (*Exec, error) {
	r := codec.NewReader(b)
	e := &Exec{}
	for _, list := range []*[]int{&e.Tasks, &e.Spaces} {
		for range r.Len(1) {
			*list = append(*list, r.Int())
		}
	}
	for _, v := range e.numbers() {
		*v = r.Int()
	}
	e.Process = finish.Decode(r)
	return e, r.Err()
}
