package progress

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestStepsWithoutATerminal(t *testing.T) {
	var out bytes.Buffer
	s := NewSteps(&out)
	clock := time.Unix(0, 0)
	s.now = func() time.Time { return clock }
	end := s.Begin("Making nodes")
	clock = clock.Add(2340 * time.Millisecond)
	end(nil)
	end = s.Begin("Starting")
	s.Say("warning: slow")
	clock = clock.Add(time.Minute)
	end(errors.New("no"))
	want := " • Making nodes ...\n ✓ Making nodes  2.3s\n • Starting ...\nwarning: slow\n ✗ Starting  60.0s\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

func TestStepsOnATerminal(t *testing.T) {
	var out bytes.Buffer
	s := NewSteps(&out)
	s.terminal, s.width = true, func() int { return 0 }
	s.Begin("Making nodes")(nil)
	if got := out.String(); !strings.HasPrefix(got, "\r\x1b[K ") || !strings.HasSuffix(got, "\r\x1b[K ✓ Making nodes  0.0s\n") {
		t.Errorf("%q", got)
	}
}

// TestStepsOnANarrowTerminal: while the step runs, no line is wider than the terminal. At the end
// the whole text is printed.
func TestStepsOnANarrowTerminal(t *testing.T) {
	var out bytes.Buffer
	s := NewSteps(&out)
	s.terminal, s.width = true, func() int { return 20 }
	s.Begin("Saving a:1, b:2, c:3, d:4")(nil)
	lines := strings.Split(out.String(), "\r\x1b[K")
	if got := lines[1]; len([]rune(got)) > 19 || !strings.Contains(got, "Saving a:1,…  0s") {
		t.Errorf("%q", got)
	}
	if got := lines[len(lines)-1]; got != " ✓ Saving a:1, b:2, c:3, d:4  0.0s\n" {
		t.Errorf("%q", got)
	}
}
