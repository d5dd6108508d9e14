// The way into a PID namespace that containers see, and into a user namespace. Go cannot fork without an
// execve, and until the execve a child shares the memory, the descriptors and the program of the
// supervisor: a container that may trace must not see that child. And the kernel lets no process with
// several threads enter a user namespace. So the supervisor starts this program outside, and it enters
// the namespaces and forks itself before Go's runtime starts.

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

// What became of it: the struct that Child.awaitEntered of package fork reads.
enum { ENTERED, NOT_JOINED, NOT_FORKED };
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

// The child is one of the supervisor, which has no other way to it than the pid.
static long fork_for_parent(void)
{
#if defined(__s390x__)
	return syscall(SYS_clone, 0, CLONE_PARENT | SIGCHLD, 0, 0, 0);
#else
	return syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
#endif
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

// BERTH_ENTER has the descriptors of a PID namespace and of a user namespace, or of a process in them, -1
// for none, and the flags of the namespaces to make in the user namespace.
__attribute__((constructor)) static void enter(void)
{
	int pid_fd, user_fd, make;
	const char *order = getenv("BERTH_ENTER");

	if (order == NULL)
		return;
	protect();
	if (sscanf(order, "%d %d %d", &pid_fd, &user_fd, &make) != 3)
		report(NOT_FORKED, EINVAL);
	if (prctl(PR_SET_NAME, "runc:[2:INIT]", 0, 0, 0) < 0)
		report(NOT_FORKED, errno);
	if (pid_fd >= 0 && setns(pid_fd, CLONE_NEWPID) < 0)
		report(NOT_JOINED, errno);
	if (user_fd >= 0)
		enter_user(user_fd, make);
	long pid = fork_for_parent();
	if (pid < 0)
		report(NOT_FORKED, errno);
	if (pid > 0)
		report(ENTERED, (int32_t)pid);
	if (pid_fd >= 0)
		close(pid_fd);
	if (user_fd >= 0)
		close(user_fd);
	if (setsid() < 0)
		_exit(255);
}
