package sysfd

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// FlockHolder returns the pid of a process that has locked a file by flock(2), or 0 if it is not known. The kernel does not name
// a process of another pid namespace. It names the process that took the lock, also if only another one still has the descriptor.
func FlockHolder(path string) int {
	var at unix.Stat_t
	if unix.Stat(path, &at) != nil {
		return 0
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0
	}
	inode := strconv.FormatUint(at.Ino, 10)
	device := fmt.Sprintf("%02x:%02x", unix.Major(at.Dev), unix.Minor(at.Dev))
	found := 0
	for line := range strings.Lines(string(locks)) {
		// "1: FLOCK ADVISORY WRITE 812 fe:01:393231 0 EOF"; a process that waits has "->" before FLOCK.
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[1] != "FLOCK" {
			continue
		}
		pid, err := strconv.Atoi(fields[4])
		dev, ino, ok := cutLast(fields[5], ":")
		if err != nil || pid <= 0 || !ok || ino != inode {
			continue
		}
		if dev == device {
			return pid
		}
		if hasOpen(pid, path) { // a file of btrfs, say, has another device than its file system
			found = pid
		}
	}
	return found
}

// hasOpen reports whether a process has a descriptor of a file.
func hasOpen(pid int, path string) bool {
	file, err := os.Stat(path)
	if err != nil {
		return false
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	all, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(all, func(fd os.DirEntry) bool {
		open, err := os.Stat(filepath.Join(dir, fd.Name()))
		return err == nil && os.SameFile(open, file)
	})
}

func cutLast(s, sep string) (before, after string, ok bool) {
	at := strings.LastIndex(s, sep)
	if at < 0 {
		return s, "", false
	}
	return s[:at], s[at+len(sep):], true
}
