// Package sealedexe has a handle of this process's own program for its children that enter
// containers. A container that can open /proc/PID/exe of such a child must not be able to write to
// the program (CVE-2019-5736).
package sealedexe

import (
	"fmt"
	"os"
	"strings"

	"github.com/opencontainers/runc/libcontainer/exeseal"
)

// Open returns a handle of the program of this process, also after its file was replaced: the program's
// file through an overlay that nobody can write to, or else a sealed copy in memory. dir is a
// directory for temporary files. The handle may be opened as a path only.
func Open(dir string) (*os.File, error) {
	if exeseal.IsSelfExeCloned() {
		return os.Open("/proc/self/exe")
	}
	// The overlay finds the file by its path. When the path changes meanwhile, it may be another
	// file.
	before, err := os.Readlink("/proc/self/exe")
	if err == nil && !strings.HasSuffix(before, " (deleted)") {
		handle, err := exeseal.CloneSelfExe(dir)
		if err != nil {
			return nil, fmt.Errorf("cannot protect the supervisor's program: %w", err)
		}
		if after, err := os.Readlink("/proc/self/exe"); err == nil && after == before {
			return handle, nil
		}
		handle.Close()
	}
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, fmt.Errorf("cannot open the supervisor's program: %w", err)
	}
	defer program.Close()
	info, err := program.Stat()
	if err != nil {
		return nil, fmt.Errorf("cannot read the supervisor's program: %w", err)
	}
	handle, err := exeseal.CloneBinary(program, info.Size(), "berth-supervisor", dir)
	if err != nil {
		return nil, fmt.Errorf("cannot copy the supervisor's program: %w", err)
	}
	return handle, nil
}
