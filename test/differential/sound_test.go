//go:build integration

package differential

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// sound lists what is wrong with a container, whoever started it: it reaches a file of the host, or one
// that its spec hides. files is the directory of the host with its files.
func sound(o observation, tr trial, files string) []string {
	var wrong []string
	report := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	left, err := os.ReadDir(filepath.Join(files, "outside"))
	if err != nil || len(left) != 1 {
		report("files of the host have changed: %v %v", left, err)
	}
	if content, err := os.ReadFile(filepath.Join(files, "outside/file")); err != nil || string(content) != "of the host\n" {
		report("a file of the host has changed: %q %v", content, err)
	}
	for _, field := range sortedFields(o) {
		prefix, section, inside := strings.Cut(field, "inside ")
		if !inside {
			continue
		}
		for _, line := range o[field] {
			switch {
			case section == "descriptors" && !startsWithAny(line, "0 ", "1 ", "2 "):
				report("%shas descriptor %s", prefix, line)
			case section == "identity" && (line == "cwd is its path 0" || strings.HasPrefix(line, "cwd (unreachable)")):
				report("%s%s", prefix, line)
			case line == "own program for writing opens":
				report("%s%s", prefix, line)
			}
		}
		if section == "access" {
			for _, line := range exposed(o[field], tr) {
				report("%s%s", prefix, line)
			}
		}
	}
	return wrong
}

func startsWithAny(line string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(line, p) })
}

func sortedFields(o observation) []string {
	fields := make([]string, 0, len(o))
	for field := range o {
		fields = append(fields, field)
	}
	slices.Sort(fields)
	return fields
}

// exposed are the masked paths that show something, and the read-only ones that can be written.
func exposed(access []string, tr trial) []string {
	var wrong []string
	for _, path := range tr.spec.Linux.MaskedPaths {
		if !slices.Contains(access, path+" read opens") {
			continue
		}
		// What covers a file is the null device, and what covers a directory is an empty file system
		// that is read-only.
		null := slices.ContainsFunc(access, func(line string) bool {
			return strings.HasPrefix(line, path+" 20") && strings.HasSuffix(line, " dev 1:3")
		})
		directory := slices.ContainsFunc(access, func(line string) bool { return strings.HasPrefix(line, path+" 4") })
		if !null && !(directory && slices.Contains(access, path+" write EROFS")) {
			wrong = append(wrong, path+" is not masked")
		}
	}
	readonly := tr.spec.Linux.ReadonlyPaths
	for _, path := range []string{"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger"} {
		covered := slices.ContainsFunc(readonly, func(ro string) bool { return path == ro || strings.HasPrefix(path, ro+"/") })
		if covered && slices.Contains(access, path+" write opens") {
			wrong = append(wrong, path+" can be written")
		}
	}
	return wrong
}

// rootIsOwn reports whether a process has another root than the host's.
func rootIsOwn(pid int) bool {
	var host, own unix.Stat_t
	if unix.Stat("/", &host) != nil || unix.Stat(fmt.Sprintf("/proc/%d/root/", pid), &own) != nil {
		return false
	}
	return host.Dev != own.Dev || host.Ino != own.Ino
}
