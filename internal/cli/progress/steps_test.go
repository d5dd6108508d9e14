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
	s.terminal = true
	s.Begin("Making nodes")(nil)
	if got := out.String(); !strings.HasPrefix(got, "\r\x1b[K ") || !strings.HasSuffix(got, "\r\x1b[K ✓ Making nodes  0.0s\n") {
		t.Errorf("%q", got)
	}
}
