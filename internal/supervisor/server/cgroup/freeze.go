package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"time"
)

// freezePatience bounds the wait for a frozen cgroup: a process that a dead disk holds
// in the kernel never freezes, and must be killed nevertheless.
const freezePatience = 200 * time.Millisecond

// freeze stops the cgroup and all below it, as far as that is possible: where it is
// not, who kills looks again.
func (p Paths) freeze() {
	file, want, is := "freezer.state", "FROZEN", frozenV1
	dir, ok := p["freezer"]
	if !ok {
		if dir, ok = p[""]; !ok {
			return
		}
		file, want, is = "cgroup.freeze", "1", frozenV2
	}
	for deadline := time.Now().Add(freezePatience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		// Once more each time: v1 can miss a process that is being forked.
		if os.WriteFile(filepath.Join(dir, file), []byte(want), 0) != nil || is(dir) {
			return
		}
	}
}

func frozenV1(dir string) bool { return contains(filepath.Join(dir, "freezer.state"), "FROZEN") }

func frozenV2(dir string) bool { return contains(filepath.Join(dir, "cgroup.events"), "frozen 1") }

// contains reports whether a line of a file is line; so it does of a file that is gone.
func contains(file, line string) bool {
	data, err := os.ReadFile(file)
	if err != nil {
		return true
	}
	for l := range strings.Lines(string(data)) {
		if strings.TrimSpace(l) == line {
			return true
		}
	}
	return false
}
