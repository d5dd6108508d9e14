package sysquota

import (
	"errors"
	"os"
	"strconv"
	"strings"
)

// Files in which an administrator, and a kubelet that counts emptyDir volumes, name projects; see projects(5) and projid(5).
const (
	projectsFile = "/etc/projects" // ID:DIRECTORY
	projidFile   = "/etc/projid"   // NAME:ID
)

// Named returns the projects that files of the host name: they may have no files yet.
func Named() (map[uint32]bool, error) {
	named := map[uint32]bool{}
	for file, field := range map[string]int{projectsFile: 0, projidFile: 1} {
		text, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		addNamed(named, string(text), field)
	}
	return named, nil
}

// addNamed adds the ids that are the field of each line. A line without an id names no project.
func addNamed(named map[uint32]bool, text string, field int) {
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) <= field {
			continue
		}
		if id, err := strconv.ParseUint(fields[field], 10, 32); err == nil {
			named[uint32(id)] = true
		}
	}
}
