package errs

import (
	"log/slog"
	"slices"
	"strings"
)

// Message is the text of an error for people, without the names of kinds, which are for programs: in logs, and in what
// commands and Status show. A name stays where it is the whole reason, as in "cluster file a.yaml: not found".
func Message(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	for _, child := range children(err) {
		if slices.Contains(Kinds(), child) {
			text = withoutKind(text, child.Error())
			continue
		}
		if said, plain := child.Error(), Message(child); said != plain && said != "" {
			if i := strings.LastIndex(text, said); i >= 0 {
				text = text[:i] + plain + text[i+len(said):]
			}
		}
	}
	return text
}

// LogAttr is a slog.HandlerOptions.ReplaceAttr that writes errors as Message has them.
func LogAttr(_ []string, attr slog.Attr) slog.Attr {
	if attr.Value.Kind() != slog.KindAny {
		return attr
	}
	if err, ok := attr.Value.Any().(error); ok && err != nil {
		attr.Value = slog.StringValue(Message(err))
	}
	return attr
}

// children are the errors that one wraps itself.
func children(err error) []error {
	switch err := err.(type) { //nolint:errorlint // each level is looked at by itself
	case interface{ Unwrap() error }:
		if child := err.Unwrap(); child != nil {
			return []error{child}
		}
	case interface{ Unwrap() []error }:
		return err.Unwrap()
	}
	return nil
}

// enough matches a text that gives the reason without the kind.
const enough = 4

// withoutKind takes the name of a kind out of a message that says why without it.
func withoutKind(text, kind string) string {
	i := strings.LastIndex(text, ": "+kind)
	if i < 0 {
		return text
	}
	before, after := text[:i], text[i+len(": "+kind):]
	switch {
	case strings.HasPrefix(after, ": "), strings.HasPrefix(after, " ("): // the reason follows
		return before + after
	case after != "" && after[0] != '\n':
		return text
	case len(strings.Fields(before)) >= enough, strings.Contains(before, " is "):
		return before + after
	}
	return text
}
