package screen

import "strings"

// Style is how a piece of text looks.
type Style uint8

// The styles. Good, Warn and Bad are colours; without colours they are Plain.
const (
	Plain Style = iota
	Bold
	Dim
	Reverse
	Good
	Warn
	Bad
)

// sgr are the parameters of the escape sequence that begins a style.
func (s Style) sgr(colour bool) string {
	switch {
	case s == Bold:
		return "1"
	case s == Dim:
		return "2"
	case s == Reverse:
		return "7"
	case s == Good && colour:
		return "32"
	case s == Warn && colour:
		return "33"
	case s == Bad && colour:
		return "31"
	}
	return ""
}

// Span is a piece of a line in one style.
type Span struct {
	// Text is printable: see package printable.
	Text  string
	Style Style
}

// Line is one line of the screen.
type Line []Span

// Text is a line in one style.
func Text(text string, style Style) Line { return Line{{text, style}} }

// Add adds text in a style.
func (l Line) Add(text string, style Style) Line { return append(l, Span{text, style}) }

// String is the line without styles.
func (l Line) String() string {
	var out strings.Builder
	for _, s := range l {
		out.WriteString(s.Text)
	}
	return out.String()
}

// In is the whole line in one style.
func (l Line) In(style Style) Line { return Text(l.String(), style) }

// encode is the line as a terminal takes it: no wider than a number of columns.
func (l Line) encode(room int, colour bool) string {
	var out strings.Builder
	for _, s := range l {
		shown := cut(s.Text, room)
		room -= Width(shown)
		if params := s.Style.sgr(colour); params != "" && shown != "" {
			out.WriteString("\x1b[" + params + "m" + shown + "\x1b[0m")
			continue
		}
		out.WriteString(shown)
	}
	return out.String()
}

// Fill adds empty lines, or leaves lines out, so that there are n.
func Fill(lines []Line, n int) []Line {
	for len(lines) < n {
		lines = append(lines, nil)
	}
	return lines[:max(n, 0)]
}
