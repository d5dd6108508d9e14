package provision

import (
	"context"
	"fmt"
)

type (
	notesKey    struct{}
	warningsKey struct{}
)

// WithNotes returns a context through which callees report what they wait for.
func WithNotes(ctx context.Context, report func(note string)) context.Context {
	return context.WithValue(ctx, notesKey{}, report)
}

// Note reports what the caller waits for. It does nothing without WithNotes.
func Note(ctx context.Context, format string, args ...any) {
	if report, ok := ctx.Value(notesKey{}).(func(string)); ok {
		report(fmt.Sprintf(format, args...))
	}
}

// WithWarnings returns a context through which callees report warnings: they stop nothing, and the
// user sees them at the end.
func WithWarnings(ctx context.Context, report func(warning string)) context.Context {
	return context.WithValue(ctx, warningsKey{}, report)
}

// Warn reports a warning. It does nothing without WithWarnings.
func Warn(ctx context.Context, format string, args ...any) {
	if report, ok := ctx.Value(warningsKey{}).(func(string)); ok {
		report(fmt.Sprintf(format, args...))
	}
}
