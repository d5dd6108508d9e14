// Package undo keeps the undo of an acquisition next to the acquisition.
//
//	var u undo.Stack
//	defer u.OnError(ctx, &err)
//	f, err := mount(...)
//	u.Push("unmount "+path, func(ctx context.Context) error { return unmount(path) })
//
// It is for objects inside one function: descriptors, mounts, directories of a partly
// created object. pod.teardown undoes objects with a record, not a stack.
package undo

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Timeout bounds one OnError run: the undo steps share it. The caller's own
// context is not used for them, since its end is often why they run.
const Timeout = 30 * time.Second

// Stack is a list of undo steps. The zero value is ready. It is not safe for
// concurrent use.
type Stack struct {
	steps []step
}

type step struct {
	what string
	undo func(context.Context) error
}

// Push adds a step; steps run last in, first out. what completes the sentence
// "cannot undo: ...".
func (s *Stack) Push(what string, undo func(context.Context) error) {
	s.steps = append(s.steps, step{what, undo})
}

// OnError runs every step when *err is not nil, and joins what they return to
// *err. Defer it with a pointer to the function's named result.
func (s *Stack) OnError(ctx context.Context, err *error) {
	if *err == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Timeout)
	defer cancel()
	*err = errors.Join(*err, s.Run(ctx))
}

// Run runs every step, even when some fail, and joins their errors.
func (s *Stack) Run(ctx context.Context) error {
	var errList []error
	for i := len(s.steps) - 1; i >= 0; i-- {
		if err := s.steps[i].undo(ctx); err != nil {
			errList = append(errList, fmt.Errorf("cannot undo: %s: %w", s.steps[i].what, err))
		}
	}
	s.steps = nil
	return errors.Join(errList...)
}
