// Package printable makes text of others safe to show to people. It is pure.
package printable

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text makes a text of others safe to show: a name or a log line can hold control characters that command the
// terminal, and marks that change the order of what is around them. They are escaped as in a string of Go. A tab
// becomes a space.
func Text(text string) string {
	if isPlain(text) {
		return text
	}
	var out strings.Builder
	for len(text) > 0 {
		r, length := utf8.DecodeRuneInString(text)
		switch {
		case r == '\t':
			out.WriteByte(' ')
		case r == utf8.RuneError && length == 1:
			fmt.Fprintf(&out, `\x%02x`, text[0])
		case unicode.IsPrint(r) && !unicode.Is(unicode.M, r):
			out.WriteRune(r)
		default:
			quoted := strconv.QuoteRuneToASCII(r)
			out.WriteString(quoted[1 : len(quoted)-1])
		}
		text = text[length:]
	}
	return out.String()
}

func isPlain(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}
