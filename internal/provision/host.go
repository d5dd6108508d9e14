package provision

import (
	"context"
	"io"
	"io/fs"
	"time"
)

// Host is the machine that tasks work on: this one, a root directory of one that
// does not run, or a fake. All changes of tasks go through it.
type Host interface {
	// Live is false for a root directory: nothing talks to a daemon or a kernel, Units enables by
	// links alone, and commands do not run.
	Live() bool
	Files() Files
	Units() Units
	Packages() Packages
	Kernel() Kernel
	Accounts() Accounts
	Assets() Assets
	// Run runs a program of the machine, without a shell, and returns its standard
	// output. A status other than zero is an error that has the end of standard error.
	Run(ctx context.Context, cmd Command) ([]byte, error)
	// Fingerprint is a short hash of a text for reports. Its key is that of the run, so that
	// a short secret cannot be found by trying.
	Fingerprint(text string) string
}

// Command is a program to run.
type Command struct {
	// Args: program (looked up in PATH) and arguments.
	Args []string
	// Env is added to a minimal environment (PATH, HOME, LANG=C), "KEY=value".
	Env []string
	// Stdin may be nil.
	Stdin io.Reader
	// Dir is the working directory; "/" when empty.
	Dir string
}

// FileInfo is what Files.Stat returns about one path. It does not follow links.
type FileInfo struct {
	// Type is 0 (regular), fs.ModeDir, fs.ModeSymlink, or another fs type bit.
	Type fs.FileMode
	// Mode has permission bits, setuid, setgid and sticky (fs.ModeSetuid, …).
	Mode     fs.FileMode
	UID, GID int
	Size     int64
	// Target of a link.
	Target string
	// Stamp changes whenever content or attributes may have changed; for caches of hashes.
	Stamp string
}

// Attr is the mode and owner that a file should have.
type Attr struct {
	Mode     fs.FileMode
	UID, GID int
}

// Files is the machine's file system. Paths are absolute as the machine sees them;
// links in them are resolved below its root.
type Files interface {
	// Stat wraps errs.NotFound for what is not there.
	Stat(path string) (FileInfo, error)
	// Open opens a regular file, links followed. errs.NotFound as Stat.
	Open(path string) (io.ReadCloser, error)
	// Digest is the "sha256:…" of a regular file, links not followed. errs.NotFound as Stat.
	Digest(path string) (string, error)
	// ReadDir lists the names in a directory, sorted. errs.NotFound as Stat.
	ReadDir(path string) ([]string, error)
	// Write replaces the file with what r has, atomically and durably: a reader sees the old or the
	// new content, also after a power cut. The directory must be there. It sets SELinux labels as
	// the policy has them.
	Write(path string, r io.Reader, attr Attr) error
	// Append adds a record to a file durably, and creates the file.
	Append(path string, data []byte, attr Attr) error
	// Room is how many bytes may still be written below a directory; a large number if unknown.
	Room(dir string) int64
	// Reserve creates a file that occupies size bytes of its disk; an existing file grows to that
	// size. The directory must be there.
	Reserve(path string, size int64) error
	// Mkdir makes one directory; its parent must be there. An existing one is no error
	// and is left as it is.
	Mkdir(path string, attr Attr) error
	// Link makes a symbolic link, atomically, in place of a link or file.
	Link(target, path string, attr Attr) error
	// SetAttr changes mode and owner of a file or directory; of a link its owner.
	SetAttr(path string, attr Attr) error
	// Tidy removes what a killed Write, Mkdir or Link of path left behind.
	Tidy(path string) error
	// Remove removes a file, link or empty directory; nil when it is not there.
	Remove(path string) error
	// RemoveAll removes a tree; nil when it is not there.
	RemoveAll(path string) error
}

// UnitState is what systemd says of a unit.
type UnitState struct {
	// Load: loaded, not-found, masked, ….
	Load string
	// Active: active, inactive, failed, activating, …; empty when not live.
	Active string
	// Sub: running, exited, dead, ….
	Sub string
	// Result: success, exit-code, start-limit-hit, …, of the last run.
	Result string
	// Enabled: enabled, disabled, static, masked, …; empty for a unit that is not there.
	Enabled string
	// NeedReload: its files changed since systemd read them.
	NeedReload bool
	// Since is when it became active; zero when it is not.
	Since time.Time
}

// Units is the service manager.
type Units interface {
	State(ctx context.Context, name string) (UnitState, error)
	// Reload makes systemd read unit files again (daemon-reload).
	Reload(ctx context.Context) error
	Enable(ctx context.Context, name string) error
	Disable(ctx context.Context, name string) error
	// Mask forbids the start of a unit whose file belongs to somebody else. Unmask allows it again.
	Mask(ctx context.Context, name string) error
	Unmask(ctx context.Context, name string) error
	// Start, Stop and Restart return when the job is done; a unit that did not come up
	// is an error that names its result and the command that shows its log. Start and Restart first
	// make systemd read the unit's files again if they have changed.
	Start(ctx context.Context, name string) error
	Stop(ctx context.Context, name string) error
	Restart(ctx context.Context, name string) error
	// ReloadUnit makes a running unit read its configuration again (ExecReload).
	ReloadUnit(ctx context.Context, name string) error
}

// Packages is the package manager.
type Packages interface {
	// Manager is apt, dnf, yum, zypper, or empty when there is none.
	Manager() string
	// Installed maps those of names that are installed to their version.
	Installed(ctx context.Context, names []string) (map[string]string, error)
	// Half lists those of names that an interrupted install left incomplete: they do not work, but
	// some of their files exist.
	Half(ctx context.Context, names []string) ([]string, error)
	// Install installs or up- or downgrades; a version may be empty (any). It waits for the
	// manager's lock, and reports through ctx's progress who holds it. Packages do not start the
	// units of hold that they bring; a running one is restarted.
	Install(ctx context.Context, packages []PackageVersion, hold []string) error
	// Revert installs versions, which may be older than the present ones, and removes no package for them. It wraps
	// errs.State if they do not fit the packages that stay, or if no list has one of them: then also errs.NotFound.
	Revert(ctx context.Context, packages []PackageVersion) error
	// Plan lists what Install would install or change, dependencies first; it reads only. A
	// package that the manager's lists do not have wraps errs.Unavailable.
	Plan(ctx context.Context, packages []PackageVersion) ([]PackageVersion, error)
	// Refresh fetches the manager's lists of packages again.
	Refresh(ctx context.Context) error
	// Remove removes packages with their configuration. If others need them, it removes nothing and
	// returns errs.State, naming the others.
	Remove(ctx context.Context, names []string) error
}

// PackageVersion is a package and the version that is wanted; empty is any.
type PackageVersion struct{ Name, Version string }

// Kernel is the running kernel. Do not call it when the host is not live.
type Kernel interface {
	// Sysctl reads a value by its dotted key; errs.NotFound when the kernel has no such key.
	Sysctl(key string) (string, error)
	SetSysctl(key, value string) error
	Module(name string) (ModuleState, error)
	LoadModule(ctx context.Context, name string) error
	UnloadModule(ctx context.Context, name string) error
	// Mounts lists mount points with source, type and options.
	Mounts() ([]Mount, error)
	Unmount(ctx context.Context, path string) error
	// Swaps lists devices and files in use as swap.
	Swaps() ([]string, error)
	SwapOn(ctx context.Context, path string) error
	SwapOff(ctx context.Context, path string) error
	// Inotify returns how many more inotify instances root's programs may create now, up to atMost.
	// All containers of a host share fs.inotify.max_user_instances.
	Inotify(atMost int) (spare int, err error)
}

// ModuleState is where a kernel module is.
type ModuleState string

// The states of a module.
const (
	ModuleLoaded    ModuleState = "loaded" // or built in
	ModuleAvailable ModuleState = "not loaded"
	ModuleAbsent    ModuleState = "not there"
)

// Mount is one mount.
type Mount struct {
	Source, Path, Type string
	Options            []string
	// Self is set for a directory that is bound on itself, as daemons do to make it a
	// mount of its own.
	Self bool
}

// User is an account.
type User struct {
	Name string
	// UID and GID; -1 lets the system choose.
	UID, GID int
	Home     string
	Shell    string
	// Groups are supplementary groups by name, sorted.
	Groups []string
	System bool
}

// Group is a group.
type Group struct {
	Name   string
	GID    int // -1 lets the system choose
	System bool
}

// Accounts is the user database.
type Accounts interface {
	// User and Group return errs.NotFound for a name that does not exist.
	User(name string) (User, error)
	Group(name string) (Group, error)
	// SetUser creates or changes an account.
	SetUser(ctx context.Context, u User) error
	SetGroup(ctx context.Context, g Group) error
	RemoveUser(ctx context.Context, name string) error
	RemoveGroup(ctx context.Context, name string) error
}
