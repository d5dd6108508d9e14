package terminal

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Screen is what a terminal shows.
type Screen struct {
	Width, Height int
	// Second is true on the second screen, which programs use that fill the terminal. The first one is kept.
	Second bool
	// Cursor is true while there is one, Wrap while long lines are broken.
	Cursor, Wrap bool
	// Colours and Reversed count the characters on the screen that were written in a colour, or reversed.
	Colours, Reversed int
	// Fault is the first sequence that is not known.
	Fault string

	cells, first [][]cell
	x, y         int
	style        string
	pending      []byte
}

type cell struct {
	char  rune
	style string
}

// NewScreen makes an empty screen.
func NewScreen(width, height int) *Screen {
	s := &Screen{Width: width, Height: height, Cursor: true, Wrap: true}
	s.cells = blank(width, height)
	return s
}

func blank(width, height int) [][]cell {
	rows := make([][]cell, height)
	for i := range rows {
		rows[i] = slices.Repeat([]cell{{' ', ""}}, width)
	}
	return rows
}

func (s *Screen) resize(width, height int) {
	s.Width, s.Height = width, height
	s.cells, s.first = blank(width, height), blank(width, height)
	s.x, s.y = 0, 0
}

func (s *Screen) clone() Screen {
	c := *s
	c.cells = make([][]cell, len(s.cells))
	for i := range s.cells {
		c.cells[i] = slices.Clone(s.cells[i])
		for _, cell := range c.cells[i] {
			switch {
			case cell.style == "7":
				c.Reversed++
			case strings.HasPrefix(cell.style, "3") || strings.HasPrefix(cell.style, "4") || strings.HasPrefix(cell.style, "9"):
				c.Colours++
			}
		}
	}
	return c
}

// Lines are the lines without spaces at their ends.
func (s *Screen) Lines() []string {
	var lines []string
	for _, row := range s.cells {
		var out strings.Builder
		for _, c := range row {
			out.WriteRune(c.char)
		}
		lines = append(lines, strings.TrimRight(out.String(), " "))
	}
	return lines
}

// String is the screen as text.
func (s *Screen) String() string { return strings.Join(s.Lines(), "\n") + "\n" }

// Has reports whether a line has the text.
func (s *Screen) Has(text string) bool { return strings.Contains(s.String(), text) }

// Write takes output of a program.
func (s *Screen) Write(p []byte) {
	s.pending = append(s.pending, p...)
	for len(s.pending) > 0 {
		n := s.take(s.pending)
		if n == 0 {
			return
		}
		s.pending = s.pending[n:]
	}
}

// take shows what is at the begin of p, and returns its length, 0 if the end of it is missing.
func (s *Screen) take(p []byte) int {
	switch c := p[0]; {
	case c == 0x1b:
		return s.sequence(p)
	case c == '\r':
		s.x = 0
		return 1
	case c == '\n':
		s.newLine()
		return 1
	case c == '\b':
		s.x = max(s.x-1, 0)
		return 1
	case c == 7:
		return 1
	case c < ' ' || c == 0x7f:
		s.fail(p[:1])
		return 1
	}
	if !utf8.FullRune(p) {
		return 0
	}
	r, n := utf8.DecodeRune(p)
	s.put(r)
	return n
}

func (s *Screen) put(r rune) {
	if s.x >= s.Width {
		if !s.Wrap {
			s.x = s.Width - 1
		} else {
			s.x = 0
			s.newLine()
		}
	}
	s.cells[s.y][s.x] = cell{r, s.style}
	s.x++
}

func (s *Screen) newLine() {
	if s.y++; s.y >= s.Height {
		s.y = s.Height - 1
		s.cells = append(s.cells[1:], blank(s.Width, 1)[0])
	}
}

// sequence takes ESC [ parameters final.
func (s *Screen) sequence(p []byte) int {
	if len(p) < 3 {
		return 0
	}
	if p[1] != '[' {
		s.fail(p[:2])
		return 2
	}
	end := bytes.IndexFunc(p[2:], func(r rune) bool { return r >= 0x40 && r <= 0x7e })
	if end < 0 {
		return 0
	}
	params, final := string(p[2:2+end]), p[2+end]
	if !s.control(params, final) {
		s.fail(p[:3+end])
	}
	return 3 + end
}

func (s *Screen) control(params string, final byte) bool {
	switch {
	case final == 'm':
		s.style = params
		if params == "0" {
			s.style = ""
		}
	case final == 'H':
		row, column, _ := strings.Cut(params, ";")
		s.y, s.x = number(row, s.Height), number(column, s.Width)
	case final == 'J' && params == "2":
		s.cells = blank(s.Width, s.Height)
	case final == 'K' && params == "":
		// Behind the last column the cursor is on it, and erases it.
		copy(s.cells[s.y][min(s.x, s.Width-1):], blank(s.Width, 1)[0])
	case final == 'J' && params == "", final == 'n': // shells clear the rest, and ask for the position
	case final == 'h' || final == 'l':
		return s.mode(params, final == 'h')
	default:
		return false
	}
	return true
}

func (s *Screen) mode(params string, on bool) bool {
	switch params {
	case "?25":
		s.Cursor = on
	case "?7":
		s.Wrap = on
	case "?1049":
		if on && !s.Second {
			s.first, s.cells = s.cells, blank(s.Width, s.Height)
		}
		if !on && s.Second {
			s.cells = s.first
		}
		s.Second = on
	case "?2004": // shells ask for marks around what is pasted
	default:
		return false
	}
	return true
}

// number is a parameter from 0, at most the last of a size.
func number(text string, size int) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		n = 1
	}
	return max(min(n-1, size-1), 0)
}

func (s *Screen) fail(sequence []byte) {
	if s.Fault == "" {
		s.Fault = fmt.Sprintf("%q", sequence)
	}
}
