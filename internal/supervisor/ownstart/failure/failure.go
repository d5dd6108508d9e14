// Package failure is the error of a child that could not become a process of a container. It goes to
// the supervisor as a value, so that nobody reads error texts.
package failure

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/berthrun/berth/internal/supervisor/ownstart/codec"
)

// Part is what a child failed at.
type Part uint8

// The parts, and what Failure.Path is with each.
const (
	// OfHost: berth or the host is at fault, not the spec. There is no Path.
	OfHost Part = iota
	// OfProgram: the program cannot be found or executed. Path is its name.
	OfProgram
	// OfDirectory: the working directory cannot be entered. Path is the directory.
	OfDirectory
	// OfUser: the kernel refuses the user or the groups. There is no Path.
	OfUser
	// OfMount: a mount cannot be made. Path is its mount point in the container.
	OfMount
	// OfDevice: a device node cannot be made. Path is its place in the container.
	OfDevice
	// OfDevNull: the container's /dev/null, which is Path, cannot be used.
	OfDevNull
	// OfSeccomp: the kernel refuses the seccomp filter. There is no Path.
	OfSeccomp
	// OfLimit: the kernel refuses a limit. Path is the name of the limit.
	OfLimit
	// OfSysctl: the kernel refuses a sysctl. Path is its name.
	OfSysctl
	// OfSpec: another part of the spec is at fault. Path is its name.
	OfSpec
)

// Failure is one error of a child.
type Failure struct {
	Part Part
	Path string
	// Text is the whole message.
	Text string
	// Errno is the kernel's reason, 0 for none.
	Errno syscall.Errno
}

func (f *Failure) Error() string { return f.Text }

// Unwrap returns the kernel's reason.
func (f *Failure) Unwrap() error {
	if f.Errno == 0 {
		return nil
	}
	return f.Errno
}

// New returns a Failure whose text is format. Its reason is the errno that an argument wraps.
func New(part Part, path, format string, args ...any) *Failure {
	err := fmt.Errorf(format, args...)
	f := &Failure{Part: part, Path: path, Text: err.Error()}
	errors.As(err, &f.Errno)
	return f
}

// From returns err as a Failure: the one that it wraps, with the text of err, or one of the host.
func From(err error) *Failure {
	out := &Failure{Text: err.Error()}
	var f *Failure
	if errors.As(err, &f) {
		out.Part, out.Path, out.Errno = f.Part, f.Path, f.Errno
	} else {
		errors.As(err, &out.Errno)
	}
	return out
}

// Encode returns the bytes that Decode reads.
func (f *Failure) Encode() []byte {
	var w codec.Writer
	w.Uint(uint64(f.Part))
	w.Uint(uint64(f.Errno))
	w.String(f.Path)
	w.String(f.Text)
	return w.Encoded()
}

// Decode reads what Encode has written.
func Decode(b []byte) (*Failure, error) {
	r := codec.NewReader(b)
	f := &Failure{Part: Part(r.Uint()), Errno: syscall.Errno(r.Uint())}
	f.Path, f.Text = r.String(), r.String()
	if err := r.Err(); err != nil {
		return nil, fmt.Errorf("cannot read the error of a child: %w", err)
	}
	return f, nil
}
