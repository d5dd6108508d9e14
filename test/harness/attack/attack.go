// Package attack tries, from inside of a container, what a hostile program would try with another
// process of its PID namespace. It changes nothing on the host: if an attempt needs a write, the
// open for it counts, and the descriptor is closed again.
package attack

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Program is the path at which the program is mounted in a container. Its argument is the process
// to attack.
const Program = "/attack"

// Report is the result of the attempts.
type Report struct {
	// Root are the names in the process's root directory, Files those of its open
	// descriptors, each as far as they can be read.
	Root, Files []string
	// CorePattern, Exe and Memory are the ways in which a file of the host, the process's program
	// and its memory could be opened for writing, "" if they could not.
	CorePattern, Exe, Memory string
	// ExeID is the device and the inode of the program, "" when it cannot be seen.
	ExeID string
	// Attached is true if the process could be traced. Injected are the system calls that succeeded
	// when the process was made to call them, Refused the others.
	Attached          bool
	Injected, Refused []string
	// Errors are the reasons why attempts failed, by attempt.
	Errors map[string]string
}

// Main runs the program by its name, which is Program, Swapper or Hunter, and returns its
// exit status.
func Main(args []string) int {
	var err error
	switch {
	case args[0] == Swapper:
		err = swap(args[1:])
	case args[0] == Hunter && len(args) == 2:
		err = hunt(args[1])
	case args[0] == Program && len(args) == 2:
		var pid int
		if pid, err = strconv.Atoi(args[1]); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(attack(pid))
		}
	default:
		err = fmt.Errorf("call it as %s PID, as %s SECONDS or as %s PATH PATH", Program, Hunter, Swapper)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// attack tries everything as root, and as the user of the process, whose files the kernel lets that
// user reach.
func attack(pid int) *Report {
	runtime.LockOSThread() // user and traced processes belong to the thread
	r := &Report{Errors: map[string]string{}}
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	var st unix.Stat_t
	users := []int{0}
	if err := unix.Stat(filepath.Join(proc, "task"), &st); err == nil {
		users = append(users, int(st.Uid))
	}
	users = append(users, statusID(proc, "Uid"))
	for _, user := range users {
		r.openAs(user, proc)
	}
	r.trace(pid)
	return r
}

// statusID is the number of the process's user. The owner of its files in /proc is another one if
// it cannot be dumped.
func statusID(proc, name string) int {
	data, _ := os.ReadFile(filepath.Join(proc, "status"))
	for line := range strings.Lines(string(data)) {
		if key, value, _ := strings.Cut(line, ":"); key == name {
			if fields := strings.Fields(value); len(fields) > 0 {
				id, _ := strconv.Atoi(fields[0])
				return id
			}
		}
	}
	return 0
}

// openAs opens what it can of the process as a user of its file system, and uses the result as
// root.
func (r *Report) openAs(user int, proc string) {
	name := func(attempt string) string { return fmt.Sprintf("%s as user %d", attempt, user) }
	become(user)
	root, err := unix.Open(filepath.Join(proc, "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	r.note(name("root"), err)
	if err == nil {
		defer unix.Close(root)
	}
	exe, exeErr := unix.Open(filepath.Join(proc, "exe"), unix.O_PATH|unix.O_CLOEXEC, 0)
	r.note(name("exe"), exeErr)
	files, filesErr := os.ReadDir(filepath.Join(proc, "fd"))
	r.note(name("fd"), filesErr)
	memory, memoryErr := unix.Open(filepath.Join(proc, "mem"), unix.O_RDWR|unix.O_CLOEXEC, 0)
	r.note(name("mem"), memoryErr)
	become(0)

	if memoryErr == nil {
		unix.Close(memory)
		r.Memory = name("opened")
	}
	for _, file := range files {
		target, _ := os.Readlink(filepath.Join(proc, "fd", file.Name()))
		r.Files = append(r.Files, file.Name()+" "+target)
	}
	if err == nil {
		r.useRoot(root, name)
	}
	if exeErr == nil {
		defer unix.Close(exe)
		var st unix.Stat_t
		if unix.Fstat(exe, &st) == nil {
			r.ExeID = fmt.Sprint(st.Dev, ":", st.Ino)
		}
		fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", exe), unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err == nil || err == unix.ETXTBSY {
			unix.Close(fd)
			r.Exe = name("writable")
		}
		r.note(name("exe for writing"), err)
	}
}

// useRoot lists the process's root and looks for the host's settings in it.
func (r *Report) useRoot(root int, name func(string) string) {
	if fd, err := unix.Openat(root, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
		dir := os.NewFile(uintptr(fd), "root")
		r.Root, _ = dir.Readdirnames(-1)
		dir.Close()
	}
	fd, err := unix.Openat(root, "proc/sys/kernel/core_pattern", unix.O_RDWR|unix.O_CLOEXEC, 0)
	r.note(name("core_pattern"), err)
	if err == nil {
		unix.Close(fd)
		r.CorePattern = name("opened for writing")
	}
}

// become makes the thread reach files as a user, with the user's capabilities for them.
func become(user int) {
	_, _, _ = syscall.RawSyscall(unix.SYS_SETFSUID, uintptr(user), 0, 0)
	_, _, _ = syscall.RawSyscall(unix.SYS_SETFSGID, uintptr(user), 0, 0)
}

func (r *Report) note(attempt string, err error) {
	if err != nil {
		r.Errors[attempt] = err.Error()
	}
}
