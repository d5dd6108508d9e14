// The timer slack of berth-supervisor's threads, set before Go's runtime starts: each thread inherits it from the
// one that creates it. See the package's documentation.

#include <string.h>
#include <sys/prctl.h>

enum { OWN = 1000 * 1000, KERNELS_DEFAULT = 50 * 1000 }; // nanoseconds

__attribute__((constructor)) static void set_timer_slack(int argc, char **argv)
{
	int own = argc > 1 && (strcmp(argv[1], "serve") == 0 || strcmp(argv[1], "keep") == 0);

	// It cannot fail. A kernel without it has no slack to set.
	prctl(PR_SET_TIMERSLACK, own ? OWN : KERNELS_DEFAULT, 0, 0, 0);
}
