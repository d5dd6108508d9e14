package supervisor

import (
	"encoding/json"
	"syscall"
)

// The calls of a client. Add, never change: one version apart works both ways.
const (
	MethodHello     = "hello"      // Hello -> Welcome; first of all
	MethodOffer     = "offer"      // StreamSet + files -> -
	MethodInfo      = "info"       // - -> Info
	MethodCreate    = "create"     // CreateRequest -> CreateReply + files
	MethodStart     = "start"      // Ref -> StartReply
	MethodSignal    = "signal"     // SignalRequest -> -
	MethodUpdate    = "update"     // UpdateRequest -> -
	MethodExec      = "exec"       // ExecCall + files -> ExecResult
	MethodExecWait  = "exec-wait"  // ExecRef -> ExecResult
	MethodAttach    = "attach"     // AttachCall + files -> -
	MethodStdinDone = "stdin-done" // Ref -> -
	MethodReopenLog = "reopen-log" // Ref -> -
	MethodRemove    = "remove"     // Ref -> -
	MethodList      = "list"       // - -> []Container
	MethodExits     = "exits"      // - -> -; NoteExit follow
	MethodStreams   = "streams"    // - -> -; NoteHold come before the answer
)

// The notes.
const (
	NoteOffered = "offered" // client: all offers are made
	NoteLeave   = "leave"   // client: it closes the connection and does not come back
	NoteHold    = "hold"    // server: StreamSet + files, to be held
	NoteDrop    = "drop"    // server: StreamSet; no names means all
	NoteExit    = "exit"    // server: Exit
)

// Hello is the first message of a connection.
type Hello struct {
	Protocol int `json:"protocol"`
	// Held are the streams that the client has duplicates of, by container.
	Held map[string][]string `json:"held,omitempty"`
	// Later: the client gets the streams that it does not hold by MethodStreams. A supervisor that does not know
	// this sends them at once, and refuses the call as errs.Unsupported.
	Later bool `json:"later,omitempty"`
}

// Welcome answers Hello.
type Welcome struct {
	Protocol int `json:"protocol"`
	// Want are the held streams that the supervisor lost.
	Want map[string][]string `json:"want,omitempty"`
	// Drop are containers that no longer exist.
	Drop []string `json:"drop,omitempty"`
}

// StreamSet names streams of a container; where files come with it they are these
// streams, in this order.
type StreamSet struct {
	ID    string   `json:"id"`
	Names []string `json:"names,omitempty"`
}

// Ref names a container.
type Ref struct {
	ID string `json:"id"`
}

// CreateReply answers MethodCreate. The files that come with it are the streams
// that it names.
type CreateReply struct {
	Container Container `json:"container"`
	Streams   StreamSet `json:"streams"`
	// ProgramError is why the program cannot be executed; nothing of the container
	// is left then. (A client that ignores this field gets NotFound from Start.)
	ProgramError string `json:"programError,omitempty"`
}

// StartReply answers MethodStart.
type StartReply struct {
	Pid int `json:"pid"`
}

// SignalRequest is the body of MethodSignal.
type SignalRequest struct {
	ID     string         `json:"id"`
	Signal syscall.Signal `json:"signal"`
	All    bool           `json:"all,omitempty"`
}

// UpdateRequest is the body of MethodUpdate.
type UpdateRequest struct {
	ID string `json:"id"`
	// Resources is an OCI LinuxResources object.
	Resources json.RawMessage `json:"resources"`
}

// FileConsole is the socket to which an exec sends the master of its terminal.
const FileConsole = "console"

// ExecCall is the body of MethodExec. Files names the files that come with it:
// StreamStdin, StreamStdout, StreamStderr as the process gets them, or
// FileConsole.
type ExecCall struct {
	ExecRequest
	Files []string `json:"files,omitempty"`
}

// ExecRef is the body of MethodExecWait.
type ExecRef struct {
	ContainerID string `json:"containerID"`
	ExecID      string `json:"execID"`
}

// ExecResult answers both.
type ExecResult struct {
	Code int32 `json:"code"`
}

// FileJoined names the pipe of an AttachCall into which the supervisor writes one
// byte once the output is joined, and input may come.
const FileJoined = "joined"

// AttachCall is the body of MethodAttach. Files names the pipes that come with
// it: StreamStdout, StreamStderr, FileJoined.
type AttachCall struct {
	ID    string   `json:"id"`
	Files []string `json:"files,omitempty"`
	// Stdin: the client writes to the container's input.
	Stdin bool `json:"stdin,omitempty"`
	// Resume: the client had joined the output when the last supervisor died.
	Resume bool `json:"resume,omitempty"`
}
