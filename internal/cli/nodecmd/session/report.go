package session

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// lineWidth bounds the progress line, in characters.
const lineWidth = 100

// Reporter shows progress: a line for each finished step, and on a terminal one more, redrawn, with
// the running ones.
type Reporter struct {
	out      io.Writer
	terminal bool

	mu      sync.Mutex
	running []string
	drawn   int
}

func newReporter(out io.Writer) *Reporter {
	file, ok := out.(*os.File)
	return &Reporter{out: out, terminal: ok && term.IsTerminal(int(file.Fd()))}
}

// Step shows a running step.
func (r *Reporter) Step(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = append(r.running, what)
	r.draw()
}

// Done shows its end.
func (r *Reporter) Done(what string, took time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.running, what); i >= 0 {
		r.running = slices.Delete(r.running, i, i+1)
	}
	mark := "done"
	if err != nil {
		mark = "FAIL"
	}
	r.print(fmt.Sprintf("%s  %s (%s)", mark, what, took.Round(10*time.Millisecond)))
}

// Note shows a note.
func (r *Reporter) Note(what, note string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.print(fmt.Sprintf("      %s: %s", what, note))
}

func (r *Reporter) print(line string) {
	r.clear()
	fmt.Fprintln(r.out, line)
	r.draw()
}

func (r *Reporter) clear() {
	if r.drawn > 0 {
		fmt.Fprintf(r.out, "\r%s\r", strings.Repeat(" ", r.drawn))
		r.drawn = 0
	}
}

func (r *Reporter) draw() {
	if !r.terminal || len(r.running) == 0 {
		return
	}
	r.clear()
	line := []rune("...   " + strings.Join(r.running, ", "))
	if len(line) > lineWidth {
		line = append(line[:lineWidth-1], '…')
	}
	r.drawn = len(line)
	fmt.Fprint(r.out, string(line))
}

// End clears the progress line.
func (r *Reporter) End() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = nil
	r.clear()
}
