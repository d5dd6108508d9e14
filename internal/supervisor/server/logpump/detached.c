// Threads with a table of file descriptors of their own: see detached.go.

#define _GNU_SOURCE
#include "detached.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE 2
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

enum { first_fd = 3, most_idle = 2, stack_size = 64 << 10 };

struct call {
	void (*run)(struct call *);
	int fd;
	const void *data;
	size_t size, done;
	int64_t offset;
	const char *path;
	unsigned int mode;
	int error;
	int over;
	pthread_cond_t finished;
	struct call *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static struct call *queue, **queue_end = &queue;
static int queued, idle;

// detach gives the calling thread a table with nothing but 0 to 2.
static int detach(void) {
	if (syscall(SYS_close_range, first_fd, ~0U, CLOSE_RANGE_UNSHARE) == 0)
		return 0;
	if (unshare(CLONE_FILES) != 0) // Linux before 5.9 has no such call
		return errno;
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
		return errno;
	for (rlim_t fd = first_fd; fd < limit.rlim_cur; fd++)
		close((int)fd);
	return 0;
}

// reopen opens what a descriptor of the process's stands for. /proc/self is the
// process, whose table is the one of its first thread.
static int reopen(int fd, int flags) {
	char path[32];
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	return open(path, flags | O_CLOEXEC | O_NOCTTY);
}

static void write_all(struct call *c) {
	int fd = reopen(c->fd, O_WRONLY);
	if (fd < 0) {
		c->error = errno;
		return;
	}
	while (c->done < c->size) {
		ssize_t n = pwrite(fd, (const char *)c->data + c->done, c->size - c->done, c->offset + (int64_t)c->done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			c->error = n < 0 ? errno : EIO;
			break;
		}
		c->done += (size_t)n;
	}
	if (close(fd) != 0 && c->error == 0) { // some file systems tell only here
		c->error = errno;
		c->done = 0;
	}
}

static void create(struct call *c) {
	int dir = reopen(c->fd, O_PATH | O_DIRECTORY);
	if (dir < 0) {
		c->error = errno;
		return;
	}
	struct open_how how = {
		.flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
		.mode = c->mode,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS,
	};
	long fd;
	do
		fd = syscall(SYS_openat2, dir, c->path, &how, sizeof how);
	while (fd < 0 && (errno == EINTR || errno == EAGAIN));
	// The umask is the process's business, not the log's.
	if (fd < 0 || fchmod((int)fd, c->mode) != 0)
		c->error = errno;
	if (fd >= 0)
		close((int)fd);
	close(dir);
}

static void *serve(void *unused) {
	(void)unused;
	int error = detach();
	pthread_mutex_lock(&lock);
	for (;;) {
		while (queue == NULL) {
			if (error != 0 || idle >= most_idle) {
				pthread_mutex_unlock(&lock);
				return NULL;
			}
			idle++;
			pthread_cond_wait(&work, &lock);
			idle--;
		}
		struct call *c = queue;
		queue = c->next;
		if (queue == NULL)
			queue_end = &queue;
		queued--;
		pthread_mutex_unlock(&lock);
		if (error == 0)
			c->run(c);
		else
			c->error = error;
		pthread_mutex_lock(&lock);
		c->over = 1;
		pthread_cond_signal(&c->finished);
	}
}

// start makes one more thread. It takes no signals: they are Go's.
static int start(void) {
	sigset_t all, before;
	pthread_attr_t attr;
	pthread_t thread;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, stack_size);
	int error = pthread_create(&thread, &attr, serve, NULL);
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error;
}

// withdraw takes a call out of the queue again; 0 when a thread has it already.
static int withdraw(struct call *c) {
	for (struct call **at = &queue; *at != NULL; at = &(*at)->next) {
		if (*at != c)
			continue;
		*at = c->next;
		if (c->next == NULL)
			queue_end = at;
		queued--;
		return 1;
	}
	return 0;
}

// run has a detached thread run the call, and waits.
static void run(struct call *c) {
	pthread_cond_init(&c->finished, NULL);
	pthread_mutex_lock(&lock);
	*queue_end = c;
	queue_end = &c->next;
	queued++;
	if (queued <= idle) {
		pthread_cond_signal(&work);
	} else {
		int error = start();
		if (error != 0 && withdraw(c)) {
			c->error = error;
			c->over = 1;
		}
	}
	while (!c->over)
		pthread_cond_wait(&c->finished, &lock);
	pthread_mutex_unlock(&lock);
	pthread_cond_destroy(&c->finished);
}

size_t berth_log_write(int fd, const void *data, size_t size, int64_t offset, int *error) {
	struct call c = {.run = write_all, .fd = fd, .data = data, .size = size, .offset = offset};
	run(&c);
	*error = c.error;
	return c.done;
}

int berth_log_create(int dir, const char *path, unsigned int mode) {
	struct call c = {.run = create, .fd = dir, .path = path, .mode = mode};
	run(&c);
	return c.error;
}
