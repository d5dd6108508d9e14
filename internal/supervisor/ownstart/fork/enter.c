// The way into a PID namespace that containers see. Go cannot fork without an execve, and until the
// execve a child shares the memory, the descriptors and the program of the supervisor: a container that
// may trace must not see that child. So the supervisor starts this program outside, and it forks itself
// into the namespace before Go's runtime starts.

#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
	SOCKET_FD = 3, // fork.Socket
	NAMESPACE_FD = 4,
};

// What became of it: the struct that awaitEntered reads.
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

// The child is one of the supervisor, which has no other way to it than the pid.
static long fork_for_parent(void)
{
#if defined(__s390x__)
	return syscall(SYS_clone, 0, CLONE_PARENT | SIGCHLD, 0, 0, 0);
#else
	return syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
#endif
}

__attribute__((constructor)) static void enter(void)
{
	if (getenv("BERTH_ENTER_PID_NAMESPACE") == NULL)
		return;
	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 || prctl(PR_SET_NAME, "runc:[2:INIT]", 0, 0, 0) < 0)
		report(NOT_FORKED, errno);
	if (setns(NAMESPACE_FD, CLONE_NEWPID) < 0)
		report(NOT_JOINED, errno);
	long pid = fork_for_parent();
	if (pid < 0)
		report(NOT_FORKED, errno);
	if (pid > 0)
		report(ENTERED, (int32_t)pid);
	close(NAMESPACE_FD);
	if (setsid() < 0)
		_exit(255);
}
