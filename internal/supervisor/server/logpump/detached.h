#ifndef BERTH_LOGPUMP_DETACHED_H
#define BERTH_LOGPUMP_DETACHED_H

#include <stddef.h>
#include <stdint.h>

// berth_log_write writes to the file that descriptor fd, an O_PATH one, stands for.
// It returns how much was written, and sets *error to an errno when that is not all.
size_t berth_log_write(int fd, const void *data, size_t size, int64_t offset, int *error);

// berth_log_create makes a file at path beneath directory dir, which has none there,
// and returns 0 or an errno.
int berth_log_create(int dir, const char *path, unsigned int mode);

#endif
