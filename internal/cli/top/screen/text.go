// Package screen is a terminal that a command takes for itself: it draws frames of lines in styles, reads keys, and
// makes the terminal what it was. It knows nothing of what is shown.
package screen

import (
	"strings"
	"unicode/utf8"

	"golang.org/x/text/width"
)

// Width is how many columns of a terminal a printable text takes.
func Width(text string) int {
	n := 0
	for _, r := range text {
		n += columnsOf(r)
	}
	return n
}

func columnsOf(r rune) int {
	if r < utf8.RuneSelf {
		return 1
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// cutSign ends a text that was cut.
const cutSign = "~"

// cut shortens a printable text to a number of columns.
func cut(text string, room int) string {
	if Width(text) <= room {
		return text
	}
	if room <= 0 {
		return ""
	}
	at, used := 0, 0
	for i, r := range text {
		if used += columnsOf(r); used > room-len(cutSign) {
			break
		}
		at = i + utf8.RuneLen(r)
	}
	return text[:at] + cutSign
}

// Left cuts a printable text to a number of columns, or adds spaces behind it.
func Left(text string, room int) string {
	text = cut(text, room)
	return text + strings.Repeat(" ", max(room-Width(text), 0))
}

// Right cuts a printable text to a number of columns, or adds spaces before it.
func Right(text string, room int) string {
	text = cut(text, room)
	return strings.Repeat(" ", max(room-Width(text), 0)) + text
}

// From leaves out columns at the begin of a printable text.
func From(text string, column int) string {
	for i, r := range text {
		if column <= 0 {
			return text[i:]
		}
		column -= columnsOf(r)
	}
	return ""
}
