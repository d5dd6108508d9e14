package provision

import (
	"context"
	"fmt"
)

type notesKey struct{}

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
