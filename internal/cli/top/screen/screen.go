package screen

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"golang.org/x/term"
)

// The sequences that a terminal gets at the begin and at the end: its second screen, without a cursor, and without
// a line break at the right edge.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[0m\x1b[2J"
	leaveScreen = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
)

// Screen is the terminal: raw, on its second screen. Leave makes it what it was.
type Screen struct {
	In, Out *os.File
	// Colour is false for styles without colours.
	Colour bool
	// former is the terminal's state before the first enter: a program that was run meanwhile may leave another.
	former  *term.State
	entered bool
	// drawn is what the terminal shows, nil if that is not known.
	drawn []string
	// logged is what the program logs meanwhile: it would be written across the frame.
	logged bytes.Buffer
}

// Enter takes the terminal.
func (s *Screen) Enter() error {
	fd := int(s.In.Fd())
	if s.former == nil {
		former, err := term.GetState(fd)
		if err != nil {
			return fmt.Errorf("cannot read the terminal's state: %w", err)
		}
		s.former = former
	}
	if _, err := term.MakeRaw(fd); err != nil {
		return fmt.Errorf("cannot make the terminal raw: %w", err)
	}
	s.entered, s.drawn = true, nil
	log.SetOutput(&s.logged)
	_, err := io.WriteString(s.Out, enterScreen)
	return err
}

// Leave makes the terminal what it was. It may be called again.
func (s *Screen) Leave() error {
	if !s.entered {
		return nil
	}
	s.entered = false
	_, err := io.WriteString(s.Out, leaveScreen)
	err = errors.Join(err, term.Restore(int(s.In.Fd()), s.former))
	log.SetOutput(os.Stderr)
	if _, logErr := s.logged.WriteTo(os.Stderr); logErr != nil {
		err = errors.Join(err, logErr)
	}
	return err
}

// Forget makes the next draw write every line.
func (s *Screen) Forget() { s.drawn = nil }

// Size is the terminal's size. One that has none gets the usual one.
func (s *Screen) Size() (width, height int) {
	width, height, err := term.GetSize(int(s.Out.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return defaultWidth, defaultHeight
	}
	return min(width, maxWidth), min(height, maxHeight)
}

const (
	defaultWidth  = 80
	defaultHeight = 24
	// A terminal that says that it is larger gets no more.
	maxWidth  = 500
	maxHeight = 500
)

// Draw shows a frame. It writes only the lines that have changed, in one piece.
func (s *Screen) Draw(frame []Line, width int) error {
	update := s.update(frame, width)
	if update == "" {
		return nil
	}
	_, err := io.WriteString(s.Out, update)
	return err
}

// update is what makes the terminal show a frame.
func (s *Screen) update(frame []Line, width int) string {
	var out strings.Builder
	if len(s.drawn) != len(frame) {
		s.drawn = nil
	}
	if s.drawn == nil {
		out.WriteString("\x1b[2J")
		s.drawn = make([]string, len(frame))
	}
	for i, l := range frame {
		encoded := l.encode(width, s.Colour)
		if encoded == s.drawn[i] {
			continue
		}
		s.drawn[i] = encoded
		fmt.Fprintf(&out, "\x1b[%d;1H%s", i+1, encoded)
		if Width(l.String()) < width {
			out.WriteString("\x1b[K") // behind a full line it would erase the last character
		}
	}
	return out.String()
}
