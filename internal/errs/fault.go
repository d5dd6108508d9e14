package errs

// Cause is the part of a container that an error is about, for programs that name the
// field of a request. Causes cross from the supervisor to the daemon: add to them, and
// change none.
type Cause string

// The causes, and what Fault.Path is with each.
const (
	// CauseMount: a mount cannot be made. Path is its mount point in the container.
	CauseMount Cause = "mount"
	// CauseDevice: a device node cannot be made. Path is its place in the container, or ""
	// where that is not known.
	CauseDevice Cause = "device"
	// CauseDevNull: the container's /dev/null, which is Path, cannot be used.
	CauseDevNull Cause = "dev-null"
	// CauseSeccomp: the seccomp filter cannot be used. There is no Path.
	CauseSeccomp Cause = "seccomp"
	// CauseLimit: the kernel refuses a limit. Path is the name of the cgroup's file, such
	// as "memory.max".
	CauseLimit Cause = "limit"
	// CauseLog: the log cannot be opened. Path is its path below the log directory.
	CauseLog Cause = "log"
	// CauseSpec: the whole OCI spec is longer than the supervisor takes. There is no Path.
	CauseSpec Cause = "spec"
)

// Fault is an error that carries its cause, for errors.As. Its text and its kind are Err's.
type Fault struct {
	Cause Cause
	Path  string
	Err   error
}

func (f *Fault) Error() string { return f.Err.Error() }

// Unwrap returns Err.
func (f *Fault) Unwrap() error { return f.Err }
