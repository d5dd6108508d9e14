// The program that the differential tests run in containers. It prints all that a process can see of
// itself and of its container, and then waits. It is C: Go's runtime changes limits, signals and
// threads of its process before main, and would hide what the process was started with.
//
// probe wait          prints, then waits for a signal
// probe read          prints, then waits until its input ends
// probe exit N        ends with N
// probe write FILE    writes to a file, and ends with 0 if it could
// probe grab SECONDS  opens the programs of other processes for writing, see grab
// probe hunt SECONDS  traces processes that run another program, see hunt
//
// The output has sections: a line "== NAME", then lines of text. Bytes that are not printable are
// written as \xNN. The last line is "== end".

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/keyctl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

static char buffer[1 << 20];
static size_t used;

// flush writes everything, also when the output is a terminal that takes little at a time.
static void flush(void) {
    for (size_t done = 0; done < used;) {
        ssize_t n = write(1, buffer + done, used - done);
        if (n < 0 && errno != EINTR && errno != EAGAIN) _exit(99);
        if (n > 0) done += n;
    }
    used = 0;
}

static void put(char c) {
    if (used == sizeof buffer) flush();
    buffer[used++] = c;
}

static void puts_raw(const char *s) { while (*s) put(*s++); }

// puts_escaped prints n bytes. A line feed stays one if lines is not 0.
static void puts_escaped(const char *s, size_t n, int lines) {
    for (size_t i = 0; i < n; i++) {
        unsigned char c = s[i];
        if (c == '\n' && lines) {
            put('\n');
        } else if (c < 32 && c != '\t' || c > 126) {
            char hex[8];
            snprintf(hex, sizeof hex, "\\x%02x", c);
            puts_raw(hex);
        } else {
            put(c);
        }
    }
}

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void say(const char *format, ...) {
    static char line[8192];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    puts_escaped(line, strlen(line), 1);
}

static void section(const char *name) { say("== %s\n", name); }

static const char *reason(void) { return errno ? strerrorname_np(errno) : "ok"; }

// result names what a call gave: a number, or why there is none.
static void result(const char *name, long value) {
    if (value < 0) say("%s %s\n", name, reason());
    else say("%s %ld\n", name, value);
}

static void file(const char *path) {
    static char data[65536];
    say("== %s\n", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        say("! %s\n", reason());
        return;
    }
    ssize_t n;
    char last = '\n';
    while ((n = read(fd, data, sizeof data)) > 0) {
        puts_escaped(data, n, 1);
        last = data[n - 1];
    }
    if (n < 0) say("! %s", reason());
    if (n < 0 || last != '\n') put('\n');
    close(fd);
}

static void describe(int dir, const char *name, const char *path) {
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW)) {
        say("%s %s\n", path, reason());
        return;
    }
    say("%s %o %u:%u", path, st.st_mode, st.st_uid, st.st_gid);
    if (S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode)) say(" dev %u:%u", major(st.st_rdev), minor(st.st_rdev));
    if (S_ISREG(st.st_mode)) say(" size %lld", (long long)st.st_size);
    if (S_ISLNK(st.st_mode)) {
        char target[PATH_MAX];
        ssize_t n = readlinkat(dir, name, target, sizeof target);
        if (n >= 0) say(" -> %.*s", (int)n, target);
    }
    say("\n");
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

// tree lists what is below a directory, in the order of names, as deep as asked. It does not enter
// procfs and sysfs.
static void tree(const char *path, int depth) {
    struct statfs fs;
    if (statfs(path, &fs) == 0 && (fs.f_type == 0x9fa0 || fs.f_type == 0x62656572)) return;
    struct dirent **names;
    int n = scandir(path, &names, NULL, by_name);
    if (n < 0) {
        say("%s ! %s\n", path, reason());
        return;
    }
    for (int i = 0; i < n; i++) {
        const char *name = names[i]->d_name;
        char below[PATH_MAX];
        struct stat st;
        if (strcmp(name, ".") && strcmp(name, "..")) {
            snprintf(below, sizeof below, "%s/%s", strcmp(path, "/") ? path : "", name);
            describe(AT_FDCWD, below, below);
            if (depth > 1 && lstat(below, &st) == 0 && S_ISDIR(st.st_mode)) tree(below, depth - 1);
        }
        free(names[i]);
    }
    free(names);
}

static void descriptors(void) {
    section("descriptors");
    for (int fd = 0; fd < 1024; fd++) {
        struct stat st;
        if (fstat(fd, &st)) continue;
        char link[64], target[PATH_MAX] = "";
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, target, sizeof target - 1);
        if (n >= 0) target[n] = 0;
        else strcpy(target, reason());
        say("%d %s type %o owner %u:%u rdev %u:%u flags %o fdflags %d\n", fd, target, st.st_mode, st.st_uid, st.st_gid,
            major(st.st_rdev), minor(st.st_rdev), fcntl(fd, F_GETFL), fcntl(fd, F_GETFD));
    }
}

static void links(void) {
    section("links");
    static const char *names[] = {"ns/cgroup", "ns/ipc", "ns/mnt", "ns/net", "ns/pid", "ns/pid_for_children", "ns/time",
                                  "ns/time_for_children", "ns/user", "ns/uts", "exe", "cwd", "root"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[64], target[PATH_MAX];
        snprintf(path, sizeof path, "/proc/self/%s", names[i]);
        ssize_t n = readlink(path, target, sizeof target);
        if (n < 0) say("%s %s\n", names[i], reason());
        else say("%s %.*s\n", names[i], (int)n, target);
    }
}

static void identity(void) {
    section("identity");
    uid_t r, e, s;
    getresuid(&r, &e, &s);
    say("uid %u %u %u\n", r, e, s);
    getresgid(&r, &e, &s);
    say("gid %u %u %u\n", r, e, s);
    static gid_t groups[65536];
    int n = getgroups(65536, groups);
    say("groups");
    for (int i = 0; i < n; i++) say(" %u", groups[i]);
    say("\n");
    mode_t mask = umask(0);
    umask(mask);
    say("umask %04o\n", mask);
    say("ppid %d\npid %d\nsid %d\npgrp %d\n", getppid(), getpid(), getsid(0), getpgrp());
    say("secure %lu\n", getauxval(AT_SECURE));
    struct utsname u;
    uname(&u);
    say("nodename %s\ndomainname %s\nmachine %s\n", u.nodename, u.domainname, u.machine);
    char cwd[PATH_MAX];
    say("cwd %s\n", getcwd(cwd, sizeof cwd) ? cwd : reason());
    struct stat here, named;
    if (stat(".", &here) == 0 && stat(cwd, &named) == 0)
        say("cwd is its path %d\n", here.st_ino == named.st_ino && here.st_dev == named.st_dev);
}

static void attributes(void) {
    section("attributes");
    result("dumpable", prctl(PR_GET_DUMPABLE));
    result("keepcaps", prctl(PR_GET_KEEPCAPS));
    result("securebits", prctl(PR_GET_SECUREBITS));
    result("no_new_privs", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
    int value = -1;
    prctl(PR_GET_PDEATHSIG, &value);
    say("pdeathsig %d\n", value);
    value = -1;
    prctl(PR_GET_CHILD_SUBREAPER, &value);
    say("subreaper %d\n", value);
    result("timerslack", prctl(PR_GET_TIMERSLACK));
    result("thp_disable", prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0));
    result("mce_kill", prctl(PR_MCE_KILL_GET, 0, 0, 0, 0));
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "speculation %d", i);
        result(name, prctl(PR_GET_SPECULATION_CTRL, i, 0, 0, 0));
    }
    say("personality %x\n", personality(0xffffffff));
    result("scheduler", sched_getscheduler(0));
    errno = 0;
    say("nice %d\n", getpriority(PRIO_PROCESS, 0));
    result("ioprio", syscall(SYS_ioprio_get, 1, 0));
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) say("cpus %d\n", CPU_COUNT(&cpus));
    int mode = -1;
    syscall(SYS_get_mempolicy, &mode, NULL, 0, NULL, 0);
    say("mempolicy %d\n", mode);
    for (int i = 0; i < RLIM_NLIMITS; i++) {
        struct rlimit l;
        if (getrlimit(i, &l) == 0) say("rlimit %d %llu %llu\n", i, (unsigned long long)l.rlim_cur, (unsigned long long)l.rlim_max);
    }
    sigset_t blocked;
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    for (int i = 1; i < NSIG; i++) {
        struct sigaction action;
        if (sigismember(&blocked, i) == 1) say("signal %d blocked\n", i);
        if (sigaction(i, NULL, &action) == 0 && action.sa_handler != SIG_DFL) say("signal %d ignored\n", i);
    }
}

static void keyrings(void) {
    section("keyrings");
    static const struct { const char *name; int id; } rings[] = {
        {"thread", KEY_SPEC_THREAD_KEYRING}, {"process", KEY_SPEC_PROCESS_KEYRING}, {"session", KEY_SPEC_SESSION_KEYRING}};
    for (size_t i = 0; i < 3; i++) {
        char text[256];
        long id = syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, rings[i].id, 0);
        if (id < 0) {
            say("%s %s\n", rings[i].name, reason());
            continue;
        }
        long n = syscall(SYS_keyctl, KEYCTL_DESCRIBE, id, text, sizeof text);
        say("%s %s\n", rings[i].name, n < 0 ? reason() : text);
        n = syscall(SYS_keyctl, KEYCTL_GET_SECURITY, id, text, sizeof text);
        say("%s label %s\n", rings[i].name, n < 0 ? reason() : text);
    }
}

static void terminal(void) {
    section("terminal");
    for (int fd = 0; fd < 3; fd++) {
        char name[256];
        int err = ttyname_r(fd, name, sizeof name);
        say("%d %s\n", fd, err ? strerrorname_np(err) : name);
    }
    struct winsize size;
    if (ioctl(0, TIOCGWINSZ, &size) == 0) say("size %u %u %u %u\n", size.ws_row, size.ws_col, size.ws_xpixel, size.ws_ypixel);
    struct termios t;
    if (tcgetattr(0, &t) == 0) say("termios %x %x %x %x\n", t.c_iflag, t.c_oflag, t.c_cflag, t.c_lflag);
    result("foreground", tcgetpgrp(0));
    int tty = open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY);
    say("/dev/tty %s\n", tty < 0 ? reason() : "opens");
    if (tty >= 0) close(tty);
    describe(AT_FDCWD, "/dev/console", "/dev/console");
}

// access_of says what can be done with a path: what it is, on which file system, and whether it opens.
static void access_of(const char *path) {
    struct statfs fs;
    struct stat st;
    if (lstat(path, &st)) {
        say("%s %s\n", path, reason());
        return;
    }
    describe(AT_FDCWD, path, path);
    if (statfs(path, &fs) == 0) say("%s fs %lx flags %lx\n", path, (long)fs.f_type, (long)fs.f_flags);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    say("%s read %s\n", path, fd < 0 ? reason() : "opens");
    if (fd >= 0) close(fd);
    if (S_ISDIR(st.st_mode)) {
        errno = 0;
        say("%s write %s\n", path, access(path, W_OK) ? reason() : "ok");
        return;
    }
    fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    say("%s write %s\n", path, fd < 0 ? reason() : "opens");
    if (fd >= 0) close(fd);
}

// own_devices reports whether /dev is a tmpfs of the container's own.
static int own_devices(void) {
    char line[4096];
    int own = 0;
    FILE *table = fopen("/proc/self/mounts", "re");
    while (table && fgets(line, sizeof line, table))
        if (strstr(line, " /dev ")) own = !strncmp(line, "tmpfs /dev tmpfs ", 17);
    if (table) fclose(table);
    return own;
}

// node makes a device node in /dev and opens it.
static void node(mode_t type, unsigned major, unsigned minor) {
    const char *path = "/dev/.probe";
    if (mknod(path, type | 0600, makedev(major, minor))) {
        say("mknod %o %u:%u %s\n", type, major, minor, reason());
        return;
    }
    for (int i = 0; i < 2; i++) {
        int fd = open(path, (i ? O_WRONLY : O_RDONLY) | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        say("node %o %u:%u %s %s\n", type, major, minor, i ? "write" : "read", fd < 0 ? reason() : "opens");
        if (fd >= 0) close(fd);
    }
    unlink(path);
}

static void accesses(char **more) {
    section("access");
    static const char *paths[] = {
        "/", "/proc", "/sys", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/tmp", "/etc", "/sys/fs/cgroup", "/etc/hosts",
        "/etc/hostname", "/etc/resolv.conf", "/data", "/proc/acpi", "/proc/asound", "/proc/bus", "/proc/fs", "/proc/interrupts",
        "/proc/irq", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/sys",
        "/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/net", "/proc/timer_list",
        "/proc/timer_stats", "/sys/firmware", "/sys/devices/virtual/powercap", "/sys/devices/system/cpu", "/sys/kernel/security",
        "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/console", "/dev/kmsg",
        "/dev/mem", "/dev/fuse", "/dev/core", "/dev/fd", "/dev/stdin"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) access_of(paths[i]);
    for (; *more; more++) access_of(*more);
    if (own_devices()) {
        node(S_IFCHR, 1, 1);
        node(S_IFCHR, 1, 3);
        node(S_IFCHR, 1, 11);
        node(S_IFCHR, 10, 229);
        node(S_IFBLK, 254, 0);
    }
    int fd = open("/proc/self/exe", O_WRONLY | O_CLOEXEC);
    say("own program for writing %s\n", fd < 0 ? reason() : "opens");
    if (fd >= 0) close(fd);
}

static void settings(void) {
    static const char *paths[] = {
        "kernel/hostname", "kernel/domainname", "kernel/msgmax", "kernel/msgmnb", "kernel/msgmni", "kernel/sem", "kernel/shmall",
        "kernel/shmmax", "kernel/shmmni", "kernel/shm_rmid_forced", "fs/mqueue/msg_default", "fs/mqueue/msg_max",
        "fs/mqueue/msgsize_max", "fs/mqueue/queues_max", "net/ipv4/ip_forward", "net/ipv4/ip_unprivileged_port_start",
        "net/ipv4/ping_group_range", "net/ipv4/tcp_syncookies", "net/ipv4/ip_local_port_range", "net/core/somaxconn",
        "net/ipv4/conf/all/forwarding", "net/ipv6/conf/all/disable_ipv6", "net/ipv4/tcp_keepalive_time"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        char path[256];
        snprintf(path, sizeof path, "/proc/sys/%s", paths[i]);
        file(path);
    }
}

// locks says what can be changed of each mount by a process that may mount: its flags, its times, and
// whether it goes. It does that in a mount namespace of its own.
static void locks(void) {
    static char *places[512];
    size_t n = 0;
    char line[4096], at[4096];
    section("locks");
    flush();
    // The kernel suspends this process until the child has ended: a seccomp filter may refuse wait4.
    pid_t child = syscall(SYS_clone, CLONE_VFORK | SIGCHLD, NULL, NULL, NULL, NULL);
    if (child < 0) {
        say("fork %s\n", reason());
        return;
    }
    if (child > 0) {
        waitpid(child, NULL, 0);
        return;
    }
    // Private: what goes here must go nowhere else.
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) {
        say("unshare %s\n", reason());
        flush();
        _exit(0);
    }
    FILE *table = fopen("/proc/self/mountinfo", "re");
    while (table && n < 512 && fgets(line, sizeof line, table))
        if (sscanf(line, "%*d %*d %*s %*s %4095s", at) == 1) places[n++] = strdup(at);
    if (table) fclose(table);
    qsort(places, n, sizeof *places, by_text);
    for (size_t i = 0; i < n; i++) {
        errno = 0;
        mount(NULL, places[i], NULL, MS_REMOUNT | MS_BIND, NULL);
        say("%s flags %s\n", places[i], reason());
        errno = 0;
        mount(NULL, places[i], NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME, NULL);
        say("%s times %s\n", places[i], reason());
    }
    while (n-- > 0) {
        errno = 0;
        umount2(places[n], MNT_DETACH | UMOUNT_NOFOLLOW);
        say("%s goes %s\n", places[n], reason());
    }
    flush();
    _exit(0);
}

static void report(int argc, char **argv, char **envp) {
    descriptors(); // before anything else opens one
    section("arguments");
    for (int i = 0; i < argc; i++) say("%s\n", argv[i]);
    section("environment");
    for (char **e = envp; *e; e++) {
        puts_escaped(*e, strlen(*e), 0);
        put('\n');
    }
    identity();
    links();
    attributes();
    keyrings();
    terminal();
    static const char *files[] = {
        "status", "mountinfo", "cgroup", "limits", "oom_score_adj", "loginuid", "sessionid", "setgroups", "uid_map", "gid_map",
        "timens_offsets", "coredump_filter", "attr/current", "attr/exec", "attr/fscreate", "attr/keycreate", "attr/sockcreate",
        "attr/apparmor/current", "attr/apparmor/exec"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/self/%s", files[i]);
        file(path);
    }
    settings();
    accesses(argv + (argc > 2 ? 2 : argc));
    section("devices");
    tree("/dev", 4);
    section("tree");
    tree("/", 3);
    section("end");
    flush();
}

// program names the program of a process, "" where it cannot be seen.
static const char *program(const char *pid) {
    static char target[PATH_MAX];
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/exe", pid);
    ssize_t n = readlink(path, target, sizeof target - 1);
    target[n < 0 ? 0 : n] = 0;
    return target;
}

// others calls a function for each process that runs another program, until the time is over.
static void others(const char *seconds, void (*what)(const char *pid)) {
    for (time_t end = time(NULL) + atoi(seconds); time(NULL) < end;) {
        DIR *dir = opendir("/proc");
        for (struct dirent *e; dir && (e = readdir(dir));) {
            const char *of;
            if (e->d_name[0] < '0' || e->d_name[0] > '9' || atoi(e->d_name) == getpid()) continue;
            of = program(e->d_name);
            if (*of && strcmp(of, "/bin/probe") && strcmp(of, "/usr/bin/cat")) what(e->d_name);
        }
        if (dir) closedir(dir);
    }
}

static int grabbed[512], grabs;

// reopen opens a program for writing. One that is busy now may be free later. A sealed file in memory opens,
// and refuses every write.
static void reopen(int fd) {
    char path[64], target[PATH_MAX];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, target, sizeof target - 1);
    target[n < 0 ? 0 : n] = 0;
    int sealed = fcntl(fd, F_GET_SEALS);
    int writable = open(path, O_WRONLY | O_CLOEXEC), why = errno;
    // The kernel says that a program is busy before it says that its mount is read-only.
    struct statfs fs;
    int readonly = fstatfs(fd, &fs) == 0 && fs.f_flags & ST_RDONLY;
    if ((writable >= 0 || why == ETXTBSY && !readonly) && (sealed < 0 || !(sealed & F_SEAL_WRITE)) && strcmp(target, "/bin/probe"))
        say("writable %s: %s\n", target, writable >= 0 ? "opens" : "busy");
    if (writable >= 0) close(writable);
}

static void grab(const char *pid) {
    char path[64];
    struct stat now, before;
    snprintf(path, sizeof path, "/proc/%s/exe", pid);
    int fd = grabs < 512 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0 || fstat(fd, &now)) return;
    for (int i = 0; i < grabs; i++)
        if (!fstat(grabbed[i], &before) && before.st_dev == now.st_dev && before.st_ino == now.st_ino) {
            close(fd);
            return;
        }
    grabbed[grabs++] = fd;
    reopen(fd);
}

static int hunted, caught, refused;

// hunt attaches to a process. One that has executed a program of the container meanwhile does not count.
static void hunt(const char *name) {
    int status;
    pid_t pid = atoi(name);
    char comm[64] = "", path[64], was[PATH_MAX];
    strcpy(was, program(name));
    hunted++;
    if (ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACEEXEC)) {
        if (errno != ESRCH) refused = errno;
        return;
    }
    if (ptrace(PTRACE_INTERRUPT, pid, 0, 0) || waitpid(pid, &status, __WALL) != pid || !WIFSTOPPED(status)) return;
    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    FILE *f = fopen(path, "re");
    if (f && fgets(comm, sizeof comm, f)) comm[strcspn(comm, "\n")] = 0;
    if (f) fclose(f);
    // The container's own processes execute the runtime's program, too: by these names.
    int own = !strcmp(comm, "exe") || !strcmp(comm, "self");
    if (!own && status >> 16 != PTRACE_EVENT_EXEC && !strcmp(program(name), was)) {
        caught++;
        if (caught < 5) say("traced %s, program %s\n", comm, was);
    }
    ptrace(PTRACE_DETACH, pid, 0, 0);
}

int main(int argc, char **argv, char **envp) {
    const char *verb = argc > 1 ? argv[1] : "wait";
    if (!strcmp(verb, "exit")) return argc > 2 ? atoi(argv[2]) : 0;
    if (!strcmp(verb, "write") && argc > 2) {
        int fd = open(argv[2], O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        return fd < 0 || write(fd, "x", 1) != 1;
    }
    if (!strcmp(verb, "grab") && argc > 2) {
        others(argv[2], grab);
        for (int i = 0; i < grabs; i++) reopen(grabbed[i]);
        say("seen %d\n== end\n", grabs);
        flush();
        return 0;
    }
    if (!strcmp(verb, "hunt") && argc > 2) {
        others(argv[2], hunt);
        errno = refused;
        say("refused %s\nhunted %d\ncaught %d\n== end\n", reason(), hunted, caught);
        flush();
        return 0;
    }
    char byte;
    if (!strcmp(verb, "locks")) {
        locks();
        section("end");
        flush();
    } else {
        report(argc, argv, envp);
    }
    if (!strcmp(verb, "read") || !strcmp(verb, "locks")) {
        while (read(0, &byte, 1) > 0) {}
        return 0;
    }
    for (;;) pause();
}
