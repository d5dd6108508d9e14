package provision

import (
	"context"
	"fmt"
)

type (
	notesKey    struct{}
	warningsKey struct{}
)

// WithNotes returns a context through which parts tell what they wait for.
func WithNotes(ctx context.Context, tell func(note string)) context.Context {
	return context.WithValue(ctx, notesKey{}, tell)
}

// Note tells whoever shows progress what is waited for; nobody may listen.
func Note(ctx context.Context, format string, args ...any) {
	if tell, ok := ctx.Value(notesKey{}).(func(string)); ok {
		tell(fmt.Sprintf(format, args...))
	}
}

// WithWarnings returns a context through which parts tell what stands in no way, and what
// the user should know when all is done.
func WithWarnings(ctx context.Context, tell func(warning string)) context.Context {
	return context.WithValue(ctx, warningsKey{}, tell)
}

// Warn tells such a thing; nobody may listen.
func Warn(ctx context.Context, format string, args ...any) {
	if tell, ok := ctx.Value(warningsKey{}).(func(string)); ok {
		tell(fmt.Sprintf(format, args...))
	}
}
