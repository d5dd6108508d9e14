/* The sandbox process that containerd needs: it waits, and reaps. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int sig) { (void)sig; _exit(0); }
static void reap(int sig) {
	(void)sig;
	while (waitpid(-1, 0, WNOHANG) > 0)
		;
}

int main(void) {
	signal(SIGTERM, end);
	signal(SIGINT, end);
	signal(SIGCHLD, reap);
	for (;;)
		pause();
}
