package order

import "strconv"

// What the supervisor and its child agree on before the first message.

// Roles of a child, each its only argument.
const (
	// RoleCreate is that of a child that becomes the init of a container.
	RoleCreate = "own-create"
	// RoleExec is that of a child that becomes a process of a container that runs.
	RoleExec = "own-exec"
)

// Name is the name of a child that has not executed a program; runc's tools know it.
const Name = "runc:[2:INIT]"

// Socket is the descriptor of the child's end of the socket.
const Socket = 3

// RootName and ProcName are the directories in the empty mount namespace on which a child can mount.
const (
	RootName = "root"
	ProcName = "proc"
)

// StagedAt is where a child finds the tree with a number of its stage.
func StagedAt(index int) string { return "/" + RootName + "/" + strconv.Itoa(index) }
