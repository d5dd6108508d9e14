// Package finish has the last steps of a process of a container: from a helper of berth's with all
// rights to the program with its own. The supervisor computes a Process from the spec (FromSpec). A
// child, which is in the container's namespaces, cgroups and root by then, calls Prepare, Become and
// Exec. All three change the calling thread only, which must be the process's first: an execve on it
// ends all others.
//
// The effects come in the same order as with libcontainer. A seccomp filter without
// no_new_privileges needs CAP_SYS_ADMIN, so it comes before the change of user, and with it as late as
// possible: then the program's filter need not allow these steps.
package finish

// Process is what a process becomes.
type Process struct {
	// Args is the command line; Args[0] is looked up in the PATH of Env.
	Args []string
	// Env has no name twice. With NeedsHome it lacks HOME, which the child reads from the
	// container's /etc/passwd.
	Env       []string
	NeedsHome bool
	// Cwd is the working directory in the container, "" for the current one.
	Cwd string
	// UID, GID and Groups are ids of the container's user namespace.
	UID, GID int
	Groups   []int
	Umask    int
	Rlimits  []Rlimit
	// Capabilities is nil to keep those of the child.
	Capabilities    *Capabilities
	NoNewPrivileges bool
	// Filter is the seccomp filter; nil for none.
	Filter *Filter
	// AppArmor and SELinux are the profile and the label of the program, "" for none.
	AppArmor, SELinux string
	// OOMScoreAdj is nil to keep that of the child.
	OOMScoreAdj *int
	// Keyring is the name of the session keyring to create or join, "" to keep that of the
	// child. KeyringAccess is added to the keyring's permissions (KEY_POS_SEARCH, ...), when it
	// is not 0.
	Keyring       string
	KeyringAccess uint32

	// program is the path that Become has found, kept the descriptors that it has left open.
	program string
	kept    []int
}

// Rlimit is a resource limit. Kind is the kernel's number.
type Rlimit struct {
	Kind       int
	Soft, Hard uint64
}

// Capabilities are sets of capabilities: bit n is capability n.
type Capabilities struct {
	Bounding, Effective, Permitted, Inheritable, Ambient uint64
}

// Filter is a seccomp filter as the kernel takes it.
type Filter struct {
	// Program has 8 bytes for each instruction (struct sock_filter), in the machine's byte order.
	Program []byte
	// Flags are the kernel's (SECCOMP_FILTER_FLAG_LOG, ...). The flag for a listener is not
	// allowed.
	Flags uint
}
