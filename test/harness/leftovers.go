package harness

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Leftovers is what an instance has on the host. Nothing of it should remain once its pods are gone
// and its daemon has ended.
type Leftovers struct {
	Mounts, NetNS, Cgroups, Processes []string
}

// FindLeftovers looks for everything that belongs to the instance in dir: mounts and
// processes by the directory, network namespaces and cgroups by the instance's name.
func FindLeftovers(dir string) Leftovers {
	var l Leftovers
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for _, line := range strings.Split(string(mounts), "\n") {
		fields := strings.Fields(line)
		if len(fields) > 4 && strings.HasPrefix(fields[4], dir) {
			l.Mounts = append(l.Mounts, fields[4])
		}
	}
	instance := InstanceOf(filepath.Join(dir, stateName))
	if dir == installedState {
		instance = "default"
	}
	marks := "berth-" + instance
	l.NetNS, _ = filepath.Glob("/run/netns/" + marks + "*")
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		slice := strings.HasPrefix(entry.Name(), "berth_"+instance) && strings.HasSuffix(entry.Name(), ".slice")
		if err == nil && entry.IsDir() && (slice || strings.HasPrefix(entry.Name(), marks)) {
			l.Cgroups = append(l.Cgroups, path)
		}
		return nil
	})
	l.Processes = Processes(func(pid int, cmdline string) bool {
		return strings.Contains(cmdline, dir) || orphanedHolder(pid, cmdline)
	})
	return l
}

// orphanedHolder reports whether a process holds namespaces for a daemon that has ended: see sysns.UserNamespace. Its
// command does not name the instance.
func orphanedHolder(pid int, cmdline string) bool {
	if cmdline != "/proc/self/fd/3 hold" {
		return false
	}
	proc, err := sysproc.ReadProc(pid)
	return err == nil && proc.PPid == 1
}

// InstanceOf returns the instance of a berth with this state directory, as docs/architecture.md
// defines it. It is part of every name on the host.
func InstanceOf(state string) string {
	sum := sha256.Sum256([]byte(state))
	return hex.EncodeToString(sum[:4])
}

// Processes lists "pid command" of every process that match accepts.
func Processes(match func(pid int, cmdline string) bool) []string {
	var found []string
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		raw, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err != nil {
			continue
		}
		cmdline := strings.TrimSpace(strings.ReplaceAll(string(raw), "\x00", " "))
		if match(pid, cmdline) {
			found = append(found, fmt.Sprintf("%d %s", pid, cmdline))
		}
	}
	return found
}

// Empty reports whether nothing is left.
func (l Leftovers) Empty() bool {
	return len(l.Mounts)+len(l.NetNS)+len(l.Cgroups)+len(l.Processes) == 0
}

func (l Leftovers) String() string {
	var b strings.Builder
	for _, kind := range []struct {
		name  string
		items []string
	}{{"mount", l.Mounts}, {"netns", l.NetNS}, {"cgroup", l.Cgroups}, {"process", l.Processes}} {
		for _, item := range kind.items {
			fmt.Fprintf(&b, "  %s %s\n", kind.name, item)
		}
	}
	return b.String()
}

// RemoveByForce removes the leftovers of a failed test, so that the next one starts clean.
func (l Leftovers) RemoveByForce() {
	for _, process := range l.Processes {
		text, _, _ := strings.Cut(process, " ")
		if pid, err := strconv.Atoi(text); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	slices.Sort(l.Mounts)
	slices.Reverse(l.Mounts)
	for _, mount := range l.Mounts {
		_ = syscall.Unmount(mount, syscall.MNT_DETACH)
	}
	for _, pin := range l.NetNS {
		_ = syscall.Unmount(pin, syscall.MNT_DETACH)
		_ = os.Remove(pin)
	}
	for _, cgroup := range l.Cgroups {
		removeCgroup(cgroup)
	}
}

// removeCgroup kills all processes in a cgroup and below, and removes it.
func removeCgroup(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		if entry.IsDir() {
			removeCgroup(filepath.Join(dir, entry.Name()))
		}
	}
	procs, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for _, text := range strings.Fields(string(procs)) {
		if pid, err := strconv.Atoi(text); err == nil && pid > 1 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	_ = os.Remove(dir)
}
