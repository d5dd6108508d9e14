// Package progress shows how far a pull or an import is: a bar on a
// terminal, and one line per stage elsewhere.
package progress

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cli/show"
)

// barWidth is how many characters the bar itself takes.
const barWidth = 24

// Bar shows one operation. It is not safe for concurrent use.
type Bar struct {
	out      io.Writer
	what     string
	terminal bool
	stage    string
	drawn    int // width of the line on the terminal
}

// New makes a bar for what ("busybox:1.36").
func New(out io.Writer, what string) *Bar {
	file, ok := out.(*os.File)
	return &Bar{out: out, what: what, terminal: ok && term.IsTerminal(int(file.Fd()))}
}

// Show draws the progress.
func (b *Bar) Show(p berthapi.Progress) {
	if !b.terminal {
		if p.Stage != b.stage {
			b.stage = p.Stage
			fmt.Fprintf(b.out, "%s: %s\n", b.what, p.Stage)
		}
		return
	}
	b.draw(line(b.what, p))
}

// Clear removes the bar from the terminal, for other output.
func (b *Bar) Clear() {
	if b.terminal && b.drawn > 0 {
		fmt.Fprintf(b.out, "\r%s\r", strings.Repeat(" ", b.drawn))
		b.drawn = 0
	}
}

func (b *Bar) draw(text string) {
	pad := max(b.drawn-len(text), 0)
	fmt.Fprintf(b.out, "\r%s%s", text, strings.Repeat(" ", pad))
	b.drawn = len(text)
}

// line is "busybox  fetching  [=====>     ]  1.2MB/4MB".
func line(what string, p berthapi.Progress) string {
	text := fmt.Sprintf("%s  %-10s", what, p.Stage)
	switch {
	case p.Total > 0:
		done := int(min(p.Done, p.Total) * barWidth / p.Total)
		head := ">"
		if done == barWidth {
			head = ""
		}
		bar := strings.Repeat("=", done) + head
		text += fmt.Sprintf("  [%-*s]  %s/%s", barWidth, bar, show.Size(uint64(max(p.Done, 0))), show.Size(uint64(p.Total)))
	case p.Done > 0:
		text += "  " + show.Size(uint64(p.Done))
	}
	return text
}
