package child

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/supervisor/ownstart/failure"
	"github.com/berthrun/berth/internal/supervisor/ownstart/finish"
	"github.com/berthrun/berth/internal/supervisor/ownstart/order"
)

// container is one that is being created.
type container struct {
	*order.Create
	// proc is a procfs that nobody else can mount on.
	proc finish.Procfs
	// root is the root directory, as a path.
	root int
	// trees are the roots of the detached clones for bind mounts, by their place in Mounts.
	trees map[int]int
	// refused are the errors of clones that could not be made, by their place.
	refused map[int]error
	// nodes are those for device nodes, by their place in Devices.
	nodes map[int]int
	// kernel are the roots of the container's procfs and sysfs, by their place.
	kernel map[string]int
	// last are mounts to be made read-only at the end.
	last []int
}

// create has the steps of a create in their order. It returns only on error.
func create() error {
	b, fds, err := receive()
	if err != nil {
		return err
	}
	ordered, err := order.DecodeCreate(b)
	if err != nil {
		return err
	}
	c := &container{Create: ordered, trees: make(map[int]int), refused: make(map[int]error), nodes: make(map[int]int), kernel: make(map[string]int)}
	if err := c.number(fds); err != nil {
		return err
	}
	if err := c.join(); err != nil {
		return err
	}
	if err := c.openProc(); err != nil {
		return err
	}
	if err := c.collect(); err != nil {
		return err
	}
	if err := c.assemble(); err != nil {
		return err
	}
	if err := answer(order.Mounted); err != nil {
		return err
	}
	if err := c.pivot(); err != nil {
		return fmt.Errorf("cannot change the root: %w", err)
	}
	// While the limits are set, the kernel refuses devices for a moment.
	if err := awaitGo(); err != nil {
		return err
	}
	if err := c.complete(); err != nil {
		return err
	}
	if err := c.Process.Prepare(c.proc); err != nil {
		return err
	}
	if err := answer(order.Ready); err != nil {
		return err
	}
	if err := awaitGo(); err != nil {
		return err
	}
	if err := c.Process.Become(c.proc, order.Socket, c.Fifo); err != nil {
		return err
	}
	c.execute()
	return nil
}

// number replaces the numbers of descriptors in the order by the descriptors.
func (c *container) number(fds []int) error {
	numbers := []*int{&c.HostMounts, &c.Fifo, &c.Console}
	for i := range c.Tasks {
		numbers = append(numbers, &c.Tasks[i])
	}
	for _, n := range numbers {
		if *n < 0 {
			continue
		}
		if *n >= len(fds) {
			return fmt.Errorf("the order has descriptor %d of %d", *n, len(fds))
		}
		*n = fds[*n]
	}
	return nil
}

// joinCgroups joins cgroups by their files "tasks". The kernel takes no lock for a thread that moves
// itself in this way, where it waits for a grace period of RCU otherwise. The other threads stay: they
// end at the execve, and none does anything. The file "cgroup.procs" of v2, of a container with little
// memory, moves all threads, with that wait.
func joinCgroups(tasks []int) error {
	for _, fd := range tasks {
		if _, err := unix.Write(fd, []byte("0")); err != nil {
			return fmt.Errorf("cannot join a cgroup: %w", err)
		}
		unix.Close(fd)
	}
	return nil
}

// join enters the cgroups.
func (c *container) join() error {
	if err := joinCgroups(c.Tasks); err != nil {
		return err
	}
	if err := answer(order.Joined); err != nil {
		return err
	}
	// A successor of a supervisor that has ended kills what is in the cgroup, perhaps before this
	// process was in it.
	if err := checkSupervisor(); err != nil {
		return err
	}
	flags := unix.CLONE_FS
	if c.NewCgroup {
		flags |= unix.CLONE_NEWCGROUP
	}
	if err := unix.Unshare(flags); err != nil {
		return fmt.Errorf("cannot make a cgroup namespace: %w", err)
	}
	return nil
}

// openProc mounts a procfs that no path in the container leads to. It goes with the old root: the close of
// a mount that is attached nowhere would wait for a grace period of its own.
func (c *container) openProc() error {
	fs, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("cannot open a procfs: %w", err)
	}
	defer unix.Close(fs)
	err = unix.FsconfigCreate(fs)
	if err == unix.EPERM && c.HostMounts < 0 {
		return failure.New(failure.OfMount, "/proc", "cannot mount a procfs: the PID namespace does not belong to the user namespace: %w", err)
	}
	if err != nil {
		return fmt.Errorf("cannot make a procfs: %w", err)
	}
	const attributes = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_NODEV
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attributes)
	if err != nil {
		return fmt.Errorf("cannot mount a procfs: %w", err)
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, "/"+order.ProcName, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("cannot attach a procfs: %w", err)
	}
	c.proc = finish.Procfs(fd)
	return nil
}

// execute waits for the start, and executes the program. The start is described in ociruntime/waiting.go.
// It does not return. An error can only be shown by the exit code and on the container's stderr: nobody
// listens any more.
func (c *container) execute() {
	unix.Close(order.Socket)
	fifo, err := c.openFifo()
	if err == nil {
		_, err = unix.Write(fifo, []byte("0"))
		unix.Close(fifo)
	}
	if err == nil {
		err = c.Process.Exec(-1)
	}
	_, _ = unix.Write(2, []byte(err.Error()+"\n"))
	os.Exit(exitFailed)
}

// openFifo returns when somebody reads from the FIFO.
func (c *container) openFifo() (int, error) {
	for {
		fd, err := unix.Openat(int(c.proc), "thread-self/fd/"+strconv.Itoa(c.Fifo), unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}
