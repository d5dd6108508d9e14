// The init of a pod's shared PID namespace. It is done before Go's runtime starts: one
// thread, no heap, and nothing that a container could make use of.

#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#elif defined(__riscv) && __riscv_xlen == 64
#define ARCH AUDIT_ARCH_RISCV64
#elif defined(__powerpc64__) && defined(__LITTLE_ENDIAN__)
#define ARCH AUDIT_ARCH_PPC64LE
#elif defined(__s390x__)
#define ARCH AUDIT_ARCH_S390X
#elif defined(__i386__)
#define ARCH AUDIT_ARCH_I386
#elif defined(__arm__)
#define ARCH AUDIT_ARCH_ARM
#else
#error "the seccomp filter of pods' inits does not know this architecture"
#endif

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

static void wait_forever(void)
{
	for (;;)
		syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0);
}

// No descriptor: the standard streams are handles on files of the host.
static void close_all(void)
{
	if (syscall(SYS_close_range, 0, ~0U, 0) == 0)
		return;
	long limit = sysconf(_SC_OPEN_MAX);
	for (long fd = 0; fd < limit; fd++)
		close((int)fd);
}

// From now on the only system call is the one that waits, whoever makes the process do
// another. A kernel without filters has none.
static int allow_waiting_only(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ppoll, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
	};
	struct sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};

	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0)
		return 0;
	return errno == EINVAL ? 0 : -1;
}

__attribute__((constructor)) static void pod_init(void)
{
	// By the environment: not every C library passes arguments to constructors.
	if (getenv("BERTH_POD_INIT") == NULL)
		return;
	// Every other user's way to it; an execve takes it back. The program's file cannot be
	// read either, so that the kernel has kept it from being dumped since the execve.
	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
		_exit(100);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		_exit(101);
	// What can be ignored is: a container that may signal pid 1 must not end its
	// neighbours. With SIGCHLD among them the kernel reaps orphans by itself.
	for (int sig = 1; sig <= SIGRTMAX; sig++)
		signal(sig, SIG_IGN);
	const struct rlimit none = {0, 0};
	if (setrlimit(RLIMIT_NPROC, &none) < 0 || setrlimit(RLIMIT_CORE, &none) < 0)
		_exit(102);
	close_all();
	if (setrlimit(RLIMIT_NOFILE, &none) < 0)
		_exit(103);
	if (allow_waiting_only() < 0)
		_exit(104);
	wait_forever();
}
