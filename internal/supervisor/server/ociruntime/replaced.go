package ociruntime

import (
	"context"
	"fmt"
	"os"

	"github.com/berthrun/berth/internal/errs"
)

// startOwnProgram calls start, which lets libcontainer start this process's own program as
// an init. libcontainer opens the program's file by the path that /proc/self/exe shows. If
// an upgrade replaces the file between these two steps, the init is another program and the
// start fails. startOwnProgram then calls undo, and start again: libcontainer finds that the
// path has changed and takes a copy of the running program.
func startOwnProgram(ctx context.Context, start func() (pid int, err error), undo func() error) (pid int, err error) {
	before, err := ownPath()
	if err != nil {
		return 0, err
	}
	pid, err = start()
	if err == nil || errs.Kind(err) != nil || ctx.Err() != nil {
		return pid, err
	}
	if now, readErr := ownPath(); readErr != nil || now == before {
		return 0, err
	}
	if undoErr := undo(); undoErr != nil {
		return 0, fmt.Errorf("%w, and the program of this process was replaced: %w", err, undoErr)
	}
	return start()
}

// ownPath returns the path of this process's program. It ends in " (deleted)" once another
// file has taken its place.
func ownPath() (string, error) {
	path, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return "", fmt.Errorf("cannot find this process's program: %w", err)
	}
	return path, nil
}
