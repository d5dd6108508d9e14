// Package profile writes profiles of this process: what its memory, its goroutines and its time are used for.
package profile

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// Profiles of a time.
const (
	CPU   = "cpu"
	Trace = "trace"
)

// MaxDuration is the longest time of a profile, and DefaultDuration the usual one.
const (
	MaxDuration     = 10 * time.Minute
	DefaultDuration = 10 * time.Second
)

// Names lists the profiles: those of states, and then those of a time.
func Names() []string {
	return []string{"heap", "allocs", "goroutine", "threadcreate", "block", "mutex", CPU, Trace}
}

// Options choose a profile.
type Options struct {
	// Name is one of Names.
	Name string
	// Duration is for profiles of a time, 0 for DefaultDuration. A profile of blocks or of mutexes is one of a time,
	// too, if it is set: the runtime counts these events from then on.
	Duration time.Duration
	// Text writes a state for people, and not in the format of pprof.
	Text bool
}

// Write writes a profile. It ends early, with what it has, when ctx does. Errors: Invalid for options that make no
// sense, State while somebody else records the same.
func Write(ctx context.Context, to io.Writer, opts Options) error {
	known := slices.Contains(Names(), opts.Name)
	switch {
	case !known:
		return fmt.Errorf("profile %q: want one of %s: %w", opts.Name, strings.Join(Names(), ", "), errs.Invalid)
	case opts.Duration < 0 || opts.Duration > MaxDuration:
		return fmt.Errorf("a profile of %s: want at most %s: %w", opts.Duration, MaxDuration, errs.Invalid)
	case opts.Text && (opts.Name == CPU || opts.Name == Trace):
		return fmt.Errorf("profile %s has no text; `go tool pprof` and `go tool trace` show it: %w", opts.Name, errs.Invalid)
	}
	duration := opts.Duration
	if duration == 0 {
		duration = DefaultDuration
	}
	switch opts.Name {
	case CPU:
		if err := pprof.StartCPUProfile(to); err != nil {
			return fmt.Errorf("cannot record the CPU's time: %w: %w", err, errs.State)
		}
		wait(ctx, duration)
		pprof.StopCPUProfile()
		return nil
	case Trace:
		if err := trace.Start(to); err != nil {
			return fmt.Errorf("cannot record a trace of the runtime: %w: %w", err, errs.State)
		}
		wait(ctx, duration)
		trace.Stop()
		return nil
	}
	return writeState(ctx, to, opts)
}

func writeState(ctx context.Context, to io.Writer, opts Options) error {
	switch {
	case opts.Name == "heap":
		runtime.GC() // the figures are those of the last collection
	case opts.Name == "block" && opts.Duration > 0:
		runtime.SetBlockProfileRate(1)
		wait(ctx, opts.Duration)
		defer runtime.SetBlockProfileRate(0)
	case opts.Name == "mutex" && opts.Duration > 0:
		defer runtime.SetMutexProfileFraction(runtime.SetMutexProfileFraction(1))
		wait(ctx, opts.Duration)
	}
	level := 0
	if opts.Text {
		level = 1
		if opts.Name == "goroutine" {
			level = 2 // each with its stack, as a panic prints them
		}
	}
	return pprof.Lookup(opts.Name).WriteTo(to, level)
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
