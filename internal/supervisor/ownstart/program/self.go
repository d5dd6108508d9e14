//go:build !berth_init

package program

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/runc/libcontainer/exeseal"

	_ "github.com/berthrun/berth/internal/supervisor/ownstart/child" // this program is that of its children
)

// Open returns this program, which contains that of children. dir is a directory for temporary files.
func Open(dir string) (*os.File, error) {
	if err := checkStatic(); err != nil {
		return nil, err
	}
	return sealSelf(dir)
}

// checkStatic refuses a program that needs a loader: a child has no other file than the program.
func checkStatic() error {
	program, err := elf.Open("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("berth's program cannot be read: %w", err)
	}
	defer program.Close()
	if slices.ContainsFunc(program.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return errors.New("berth's program is not linked statically")
	}
	return nil
}

// sealSelf returns a handle of the program of this process, also after its file was replaced: the program's
// file through an overlay that nobody can write to, or else a sealed copy in memory. dir is a
// directory for temporary files. The handle may be opened as a path only.
func sealSelf(dir string) (*os.File, error) {
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
