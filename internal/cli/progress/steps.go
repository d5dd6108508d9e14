package progress

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// frames are the frames of the spinner before a running step.
const frames = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"

// frameTime is how long each is shown.
const frameTime = 100 * time.Millisecond

// Steps shows the steps of a long operation, each with its duration: with a spinner on a terminal,
// and a line at the begin and the end elsewhere. One step is shown at a time. It is safe for
// concurrent use.
type Steps struct {
	mu       sync.Mutex
	out      io.Writer
	terminal bool
	width    func() int // of the terminal, in columns; 0 is unknown
	now      func() time.Time
	text     string // of the running step
	begun    time.Time
	frame    int
}

// NewSteps shows steps on out.
func NewSteps(out io.Writer) *Steps {
	file, ok := out.(*os.File)
	width := func() int {
		columns, _, err := term.GetSize(int(file.Fd()))
		if err != nil {
			return 0
		}
		return columns
	}
	return &Steps{out: out, terminal: ok && term.IsTerminal(int(file.Fd())), width: width, now: time.Now}
}

// Begin shows a step until the function that it returns is called with the step's end.
func (s *Steps) Begin(text string) (end func(error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text, s.begun = text, s.now()
	if !s.terminal {
		fmt.Fprintf(s.out, " • %s ...\n", text)
		return s.end
	}
	s.draw()
	stop := make(chan struct{})
	go s.spin(stop)
	return func(err error) {
		close(stop)
		s.end(err)
	}
}

func (s *Steps) spin(stop chan struct{}) {
	tick := time.NewTicker(frameTime)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			s.mu.Lock()
			if s.text != "" {
				s.draw()
			}
			s.mu.Unlock()
		}
	}
}

// draw redraws the step. The caller holds s.mu.
func (s *Steps) draw() {
	signs := []rune(frames)
	s.frame++
	took := "  " + s.now().Sub(s.begun).Truncate(time.Second).String()
	text := []rune(s.text)
	// Each redraw would add a line if the terminal broke this one in two.
	if room := s.width() - len(took) - len("   ") - 1; room > 0 && len(text) > room {
		text = append(text[:room-1:room-1], '…')
	}
	fmt.Fprintf(s.out, "\r\x1b[K %c %s%s", signs[s.frame%len(signs)], string(text), took)
}

func (s *Steps) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sign, clear := "✓", ""
	if err != nil {
		sign = "✗"
	}
	if s.terminal {
		clear = "\r\x1b[K"
	}
	fmt.Fprintf(s.out, "%s %s %s  %.1fs\n", clear, sign, s.text, s.now().Sub(s.begun).Seconds())
	s.text = ""
}

// Say writes a line above the running step.
func (s *Steps) Say(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.terminal {
		fmt.Fprint(s.out, "\r\x1b[K")
	}
	fmt.Fprintln(s.out, text)
}
