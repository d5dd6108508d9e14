// The way into a PID namespace that containers see, into a user namespace, and into the container's cgroup
// of v2. Go cannot fork without an execve, and until the execve a child shares the memory, the descriptors
// and the program of the supervisor:
//
// - a container that may trace must not see that child;
// - in the container's cgroup, whatever befalls the cgroup befalls the supervisor: a kill of the whole cgroup
//   for want of memory kills every process that shares the memory of one in it, and while the cgroup is frozen
//   or has used up its CPU time, the child does not run, and the thread that has started it waits.
//
// And the kernel lets no process with several threads enter a user namespace. So the supervisor starts this
// program outside, and it enters the namespaces and forks itself before Go's runtime starts.

#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SOCKET_FD = 3 }; // order.Socket

// What became of it: the struct that Child.awaitEntered of package fork reads. After MOVED another one comes,
// of the process whose pid it has.
enum { ENTERED, NOT_JOINED, NOT_FORKED, MOVED };
struct entered {
	int32_t what, value;
};

static void report(int32_t what, int32_t value)
{
	struct entered message = {what, value};

	signal(SIGPIPE, SIG_IGN);
	ssize_t n = write(SOCKET_FD, &message, sizeof(message));
	_exit(n == sizeof(message) ? 0 : 1);
}

static void protect(void)
{
	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
		report(NOT_FORKED, errno);
}

// The arguments of clone3, up to its version 2.
struct clone3_args {
	uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};
#define INTO_CGROUP 0x200000000ULL // CLONE_INTO_CGROUP

// The child is one of the supervisor, which has no other way to it than the pid. It is born into a cgroup, unless
// cgroup_fd is -1, and into the new namespaces of make.
static long fork_for_parent(int cgroup_fd, int make)
{
	if (cgroup_fd >= 0) {
		// The child inherits the signal of this process, SIGCHLD: with CLONE_PARENT the kernel takes no other.
		struct clone3_args args = {.flags = CLONE_PARENT | INTO_CGROUP | (unsigned int)make, .cgroup = (uint64_t)cgroup_fd};
		return syscall(SYS_clone3, &args, sizeof(args));
	}
#if defined(__s390x__)
	return syscall(SYS_clone, 0, CLONE_PARENT | SIGCHLD | make, 0, 0, 0);
#else
	return syscall(SYS_clone, CLONE_PARENT | SIGCHLD | make, 0, 0, 0, 0);
#endif
}

// move has a child of the supervisor go on in the cgroup, when this process has reported it and has ended.
static void move(int cgroup_fd)
{
	int ended[2];
	char c;

	if (pipe(ended) < 0)
		report(NOT_FORKED, errno);
	long pid = fork_for_parent(cgroup_fd, 0);
	if (pid < 0)
		report(NOT_FORKED, errno);
	if (pid > 0)
		report(MOVED, (int32_t)pid);
	close(ended[1]);
	while (read(ended[0], &c, 1) < 0 && errno == EINTR)
		;
	close(ended[0]);
}

// enter_user enters a user namespace as its root, and makes namespaces that belong to it. The one with the
// mounts is a copy in which the kernel locks what the host's root has set: neither can a mount be removed
// nor a flag of it.
static void enter_user(int fd, int make)
{
	if (setns(fd, CLONE_NEWUSER) < 0)
		report(NOT_JOINED, errno);
	protect();
	if (setresuid(0, 0, 0) < 0)
		report(NOT_JOINED, errno);
	protect(); // a change of ids may undo it, as a sysctl says
	if (make != 0 && unshare(make) < 0)
		report(NOT_FORKED, errno);
	// As with libcontainer, the group that a new IPC namespace's message queues belong to is none of the
	// user namespace's.
	if (setresgid(0, 0, 0) < 0)
		report(NOT_JOINED, errno);
	protect();
	// The namespace may forbid it: then the groups, which it does not have, are of no use in it.
	(void)!syscall(SYS_setgroups, 0, NULL);
}

// BERTH_ENTER has the descriptors of a PID namespace and of a user namespace, or of a process in them, and of a
// cgroup of v2, -1 for none, and the flags of the namespaces to make, in the user namespace if there is one.
__attribute__((constructor)) static void enter(void)
{
	int pid_fd, user_fd, cgroup_fd, make;
	const char *order = getenv("BERTH_ENTER");

	if (order == NULL)
		return;
	protect();
	if (sscanf(order, "%d %d %d %d", &pid_fd, &user_fd, &cgroup_fd, &make) != 4)
		report(NOT_FORKED, EINVAL);
	if (prctl(PR_SET_NAME, "runc:[2:INIT]", 0, 0, 0) < 0)
		report(NOT_FORKED, errno);
	int cgroup_at_fork = cgroup_fd, make_at_fork = make;
	if (user_fd >= 0 && cgroup_fd >= 0) { // the root of a user namespace may not fork into a cgroup of the host
		move(cgroup_fd);
		cgroup_at_fork = -1;
	}
	if (pid_fd >= 0 && setns(pid_fd, CLONE_NEWPID) < 0)
		report(NOT_JOINED, errno);
	if (user_fd >= 0) {
		enter_user(user_fd, make);
		make_at_fork = 0;
	}
	long pid = fork_for_parent(cgroup_at_fork, make_at_fork);
	if (pid < 0)
		report(NOT_FORKED, errno);
	if (pid > 0)
		report(ENTERED, (int32_t)pid);
	const int ours[] = {pid_fd, user_fd, cgroup_fd};
	for (size_t n = 0; n < sizeof(ours) / sizeof(ours[0]); n++)
		if (ours[n] >= 0)
			close(ours[n]);
	if (setsid() < 0)
		_exit(255);
}
