//go:build integration

package differential

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// observation is what was seen of one process and its container: field to lines, without anything that
// differs between two runs of one starter.
type observation map[string][]string

func (o observation) add(field, format string, args ...any) {
	o[field] = append(o[field], fmt.Sprintf(format, args...))
}

// merge adds the fields of another observation, with a prefix.
func (o observation) merge(prefix string, other observation) {
	for field, lines := range other {
		o[prefix+field] = append(o[prefix+field], lines...)
	}
}

// A statusLine that changes by itself, or that says how much the process has used.
var changing = regexp.MustCompile(`^(Pid|PPid|Tgid|Ngid|Vm\w+|Rss\w+|State|FDSize|HugetlbPages|SigQ|SigPnd|ShdPnd|(non)?voluntary_ctxt_switches|TracerPid|NStgid|NSpid|NSpgid|NSsid):`)

// numbered are names of objects that the kernel numbers.
var numbered = regexp.MustCompile(`\b(pipe|socket|anon_inode|mnt|net|pid|ipc|uts|user|cgroup|time):\[\d+\]`)

// beforeReport is the section of what a program prints that is not the probe.
const beforeReport = "output before the report"

// notExecuted is the message of an init whose program the kernel does not execute: berth's init also
// says what that means.
var notExecuted = regexp.MustCompile(`^exec:? "?([^":]+)"?: (no such file or directory|exec format error)( \(.*\))?$`)

// sees is what the program in the container has printed.
func (s *side) sees(report string) observation {
	o := observation{}
	section := beforeReport
	self := reportedPid(report)
	for line := range strings.Lines(report) {
		line = moment.ReplaceAllString(strings.TrimRight(line, "\r\n"), "time")
		if name, ok := strings.CutPrefix(line, "== "); ok {
			section = name
			o["inside "+section] = nil
			continue
		}
		switch section {
		case beforeReport:
			line = notExecuted.ReplaceAllString(line, "exec $1: $2")
		case "/proc/self/mountinfo":
			continue // the host reads the same table
		case "/proc/self/status":
			if changing.MatchString(line) {
				continue
			}
		case "devices", "tree":
			if strings.HasPrefix(line, "/dev/shm/") {
				continue // in the host's IPC namespace they are of any program
			}
		case "identity", "terminal":
			for _, name := range []string{"sid ", "pid ", "pgrp ", "foreground "} {
				if line == name+self {
					line = name + "its own"
				}
			}
			if line == "ppid "+strconv.Itoa(s.cmd.Process.Pid) {
				line = "ppid of the supervisor"
			}
		}
		if self != "" {
			line = ownProc(line, self)
		}
		o.add("inside "+section, "%s", s.normal(s.named(line)))
	}
	return o
}

// ownProc replaces the number of a process in the paths of its own directory in procfs.
func ownProc(text, pid string) string {
	return regexp.MustCompile(`/proc/`+pid+`\b`).ReplaceAllString(text, "/proc/its own")
}

func reportedPid(report string) string {
	for line := range strings.Lines(report) {
		if pid, ok := strings.CutPrefix(strings.TrimSpace(line), "pid "); ok {
			return pid
		}
	}
	return ""
}

// named replaces the numbers of kernel objects by what they are: the host's, the pod's, or others.
func (s *side) named(text string) string {
	return numbered.ReplaceAllStringFunc(text, func(object string) string {
		kind, _, _ := strings.Cut(object, ":")
		if host, err := os.Readlink("/proc/self/ns/" + kind); err == nil {
			if host == object {
				return kind + " namespace of the host"
			}
			for name, pin := range s.pinned {
				var st unix.Stat_t
				if strings.HasSuffix(name, kind) && unix.Stat(pin, &st) == nil && object == fmt.Sprintf("%s:[%d]", kind, st.Ino) {
					return name + " namespace of the pod"
				}
			}
			return kind + " namespace of its own"
		}
		return kind + ":[]"
	})
}

// looksAt is what the host sees of a process.
func (s *side) looksAt(pid int) observation {
	o := observation{}
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	for _, name := range []string{
		"cgroup", "limits", "oom_score_adj", "personality", "loginuid", "sessionid", "setgroups", "uid_map", "gid_map", "projid_map",
		"timens_offsets", "coredump_filter", "attr/current", "attr/exec", "attr/fscreate", "attr/keycreate", "attr/sockcreate",
		"attr/apparmor/current", "attr/apparmor/exec", "comm", "timerslack_ns", "autogroup",
	} {
		data, err := os.ReadFile(filepath.Join(proc, name))
		if err != nil {
			o.add("host "+name, "! %v", errnoOf(err))
			continue
		}
		text := s.normal(string(data))
		if name == "autogroup" {
			text = regexp.MustCompile(`autogroup-\d+`).ReplaceAllString(text, "autogroup")
		}
		o["host "+name] = strings.Split(strings.TrimRight(text, "\n"), "\n")
	}
	for _, name := range []string{"cmdline", "environ"} {
		data, err := os.ReadFile(filepath.Join(proc, name))
		if err != nil {
			o.add("host "+name, "! %v", errnoOf(err))
		}
		o["host "+name] = append(o["host "+name], strings.Split(s.normal(string(data)), "\x00")...)
	}
	o["host mounts of the process"] = s.mountsOf(filepath.Join(proc, "mountinfo"))
	inner := s.status(o, proc)
	s.stat(o, proc)
	s.descriptors(o, proc)
	for _, name := range []string{"ns/cgroup", "ns/ipc", "ns/mnt", "ns/net", "ns/pid", "ns/pid_for_children", "ns/time", "ns/user", "ns/uts", "exe", "cwd", "root"} {
		target, err := os.Readlink(filepath.Join(proc, name))
		if err != nil {
			o.add("host links", "%s ! %v", name, errnoOf(err))
			continue
		}
		if inner != "" {
			target = ownProc(target, inner)
		}
		o.add("host links", "%s %s%s", name, s.normal(s.named(target)), s.ownerOf(filepath.Join(proc, name), name))
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(proc, "task"), &st); err == nil {
		o.add("host owner", "%d:%d", st.Uid, st.Gid) // root's if the process cannot be dumped
	}
	threads, err := os.ReadDir(filepath.Join(proc, "task"))
	o.add("host threads", "%d %v", len(threads), err)
	o["host seccomp"] = filtersOf(pid)
	return o
}

// ownerOf names the user namespace that owns a namespace.
func (s *side) ownerOf(path, name string) string {
	if !strings.HasPrefix(name, "ns/") || name == "ns/user" || name == "ns/time" {
		return ""
	}
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	fd, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_USERNS)
	if err != nil {
		return fmt.Sprint(" owner ! ", err)
	}
	defer unix.Close(fd)
	owner, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return fmt.Sprint(" owner ! ", errnoOf(err))
	}
	return ", owner " + s.named(owner)
}

// status returns the process's number in its own PID namespace.
func (s *side) status(o observation, proc string) (inner string) {
	data, err := os.ReadFile(filepath.Join(proc, "status"))
	if err != nil {
		o.add("host status", "! %v", errnoOf(err))
	}
	for line := range strings.Lines(string(data)) {
		if !changing.MatchString(line) {
			o.add("host status", "%s", strings.TrimSpace(line))
		}
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "NSpid:" {
			o.add("host depth of PID namespaces", "%d", len(fields)-1)
			inner = fields[len(fields)-1]
		}
	}
	return inner
}

// stat reads the fields of /proc/PID/stat that say how a process was set up.
func (s *side) stat(o observation, proc string) {
	data, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		o.add("host stat", "! %v", errnoOf(err))
		return
	}
	_, after, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(after)
	own := filepath.Base(proc)
	for _, f := range []struct {
		name string
		at   int // the number of the field in proc(5)
	}{{"parent", 4}, {"process group", 5}, {"session", 6}, {"terminal", 7}, {"foreground", 8}, {"nice", 19}, {"exit signal", 38}, {"real-time priority", 40}, {"policy", 41}} {
		value := fields[f.at-3]
		switch value {
		case own:
			value = "its own"
		case strconv.Itoa(s.cmd.Process.Pid):
			value = "the supervisor"
		}
		o.add("host stat", "%s %s", f.name, value)
	}
}

// descriptors lists the open files of a process.
func (s *side) descriptors(o observation, proc string) {
	entries, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		o.add("host descriptors", "! %v", errnoOf(err))
	}
	for _, e := range entries {
		at := filepath.Join(proc, "fd", e.Name())
		target, _ := os.Readlink(at)
		var st unix.Stat_t
		err := unix.Stat(at, &st)
		info, _ := os.ReadFile(filepath.Join(proc, "fdinfo", e.Name()))
		o.add("host descriptors", "%s %s mode %o owner %d:%d %v %s", e.Name(), s.normal(s.named(target)), st.Mode, st.Uid, st.Gid, err, flagsOf(string(info)))
	}
	slices.Sort(o["host descriptors"])
}

func flagsOf(fdinfo string) string {
	for line := range strings.Lines(fdinfo) {
		if strings.HasPrefix(line, "flags:") {
			return strings.Join(strings.Fields(line), " ")
		}
	}
	return ""
}

// figures are the files of cgroups that count, or that cannot be read.
var figures = regexp.MustCompile(`(stat|stat\.local|usage|usage_in_bytes|max_usage_in_bytes|failcnt|current|peak|events|events\.local|numa_stat|pressure|slabinfo|procs|tasks|threads|` +
	`usage_all|usage_percpu|usage_percpu_sys|usage_percpu_user|usage_sys|usage_user|event_control|force_empty|pressure_level|reclaim|kill|memory_pressure|` +
	`clone_children|io_merged|io_queued|io_service_bytes|io_service_time|io_serviced|io_wait_time|sectors|time|_recursive)$`)

// cgroups lists every cgroup of a container with its files, except those that count, and the one that says
// how a cpuset of v1 gets its processors.
func (s *side) cgroups(groups map[string]string, pid int) observation {
	o := observation{}
	for controller, dir := range groups {
		field := "cgroup " + controller
		o.add(field, "path %s", s.normal(dir))
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name, _ := filepath.Rel(dir, path)
			info, err := entry.Info()
			if err != nil {
				return err
			}
			st := info.Sys()
			o.add(field, "%s %v %s", name, info.Mode(), ownerText(st))
			if entry.IsDir() || figures.MatchString(name) {
				return nil
			}
			data, err := os.ReadFile(path)
			if err != nil {
				o.add(field, "%s ! %v", name, errnoOf(err))
				return nil
			}
			for line := range strings.Lines(string(data)) {
				o.add(field, "%s: %s", name, strings.TrimSpace(line))
			}
			return nil
		})
		if err != nil {
			o.add(field, "! %v", errnoOf(err))
		}
		for _, name := range []string{"cgroup.procs", "tasks"} {
			data, err := os.ReadFile(filepath.Join(dir, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			members := strings.Fields(string(data))
			for i, member := range members {
				if member == strconv.Itoa(pid) {
					members[i] = "the init"
				}
			}
			o.add(field, "%s has %v %v", name, members, err)
		}
	}
	return o
}

// files lists what is below a directory of the host, to see what a starter has created in it.
func (s *side) files(dir string) []string {
	var lines []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		target, _ := os.Readlink(path)
		size := int64(0)
		if info.Mode().IsRegular() {
			size = info.Size()
		}
		lines = append(lines, fmt.Sprintf("%s %v %s %d %s", s.normal(path), info.Mode(), ownerText(info.Sys()), size, s.normal(target)))
		return nil
	})
	if err != nil {
		lines = append(lines, fmt.Sprint("! ", errnoOf(err)))
	}
	return lines
}

// errnoOf is the kernel's reason in an error, without paths.
func errnoOf(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
