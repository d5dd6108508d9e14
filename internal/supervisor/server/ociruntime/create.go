package ociruntime

import "context"

// Create makes the container up to the point where its init waits to execute the
// user's program, and returns the init's pid, a child of this process. When ctx ends
// first, Create kills everything that it started. On error the caller calls Remove. The
// error is a *ProgramError when the program is at fault, and has an errs.Fault where it is
// about a part of the container. No two calls for one id may run at a time.
func (r *Runtime) Create(ctx context.Context, p *Plan, io *StdIO) (pid int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	return r.starter.create(ctx, p, io)
}
