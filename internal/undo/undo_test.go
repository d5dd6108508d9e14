package undo

import (
	"context"
	"errors"
	"testing"
)

func TestOnErrorRunsAllStepsInReverseAndJoins(t *testing.T) {
	first, second := errors.New("first"), errors.New("second")
	var order []string
	run := func() (err error) {
		var u Stack
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		defer u.OnError(ctx, &err)
		u.Push("a", func(ctx context.Context) error { order = append(order, "a"); return ctx.Err() })
		u.Push("b", func(context.Context) error { order = append(order, "b"); return second })
		return first
	}
	err := run()
	if !errors.Is(err, first) || !errors.Is(err, second) {
		t.Errorf("error %v does not join the cause and the failed step", err)
	}
	if errors.Is(err, context.Canceled) {
		t.Error("a step saw the caller's cancelled context")
	}
	if len(order) != 2 || order[0] != "b" || order[1] != "a" {
		t.Errorf("order %v, want [b a]", order)
	}
}

func TestOnErrorDoesNothingOnSuccess(t *testing.T) {
	ran := false
	run := func() (err error) {
		var u Stack
		defer u.OnError(context.Background(), &err)
		u.Push("a", func(context.Context) error { ran = true; return nil })
		return nil
	}
	if err := run(); err != nil || ran {
		t.Errorf("err %v, step ran %v", err, ran)
	}
}
