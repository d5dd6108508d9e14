package order

// Answer is the first byte of a message of the child.
type Answer byte

// The answers of the init of a container, in their order.
const (
	// Joined: the init is in all its cgroups. A kill of the cgroup reaches it.
	Joined Answer = 'j'
	// Mounted: all mounts are made. The limits can be set. The init changes its root, and waits for Go.
	Mounted Answer = 'm'
	// Ready: all is made that the spec says. The init waits for Go.
	Ready Answer = 'r'
	// Failed: the init ends. A failure.Failure follows.
	Failed Answer = 'f'
)

// Go is the supervisor's byte for an init that waits. After Ready the init takes the program's rights, and
// closes the socket when it waits for the start.
const Go = 'g'

// MaxOrder is the longest order, in bytes. The kernel takes less as arguments and environment.
const MaxOrder = 32 << 20
