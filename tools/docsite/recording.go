package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// A recording is what a program printed, in asciinema's format (asciicast v2): a line of JSON with the measures of the
// terminal, then one for each output: [seconds, "o", text].
// https://docs.asciinema.org/manual/asciicast/v2/

// The measures of a recording, in characters.
const (
	columns = 104
	rows    = 30
)

// The measures of its picture, in pixels and seconds.
const (
	castWidth  = 840
	lineHeight = 18
	descent    = 5 // below the base line of a text
	inset      = 14
	// toRead is the least time before a command: a reader sees what the one before it printed.
	toRead = 1.6
	atEnd  = 5
	// idle is the most that a pause of the program lasts in the picture.
	idle = 1
)

type castHeader struct {
	Version int    `json:"version"`
	Width   int    `json:"width"`
	Height  int    `json:"height"`
	Title   string `json:"title"`
}

// record copies in to out, and writes it as a recording.
func record(in io.Reader, out io.Writer, file, title string) error {
	var cast bytes.Buffer
	lines := json.NewEncoder(&cast)
	lines.SetEscapeHTML(false)
	if err := lines.Encode(castHeader{Version: 2, Width: columns, Height: rows, Title: title}); err != nil {
		return err
	}
	began := time.Now()
	var cut []byte // the begin of a character, whose rest has not been read
	for buffer := make([]byte, 1<<16); ; {
		n, err := in.Read(buffer)
		if _, err := out.Write(buffer[:n]); err != nil {
			return err
		}
		text := append(cut, buffer[:n]...)
		whole := len(text)
		if err == nil {
			whole = wholeCharacters(text)
		}
		if whole > 0 {
			seconds := time.Since(began).Round(time.Millisecond).Seconds()
			event := []any{seconds, "o", strings.ReplaceAll(string(text[:whole]), "\n", "\r\n")}
			if err := lines.Encode(event); err != nil {
				return err
			}
		}
		cut = slices.Clone(text[whole:])
		if errors.Is(err, io.EOF) {
			return os.WriteFile(file, cast.Bytes(), 0o644) //nolint:gosec // a recording is for all
		}
		if err != nil {
			return err
		}
	}
}

// wholeCharacters is the length of a text without a character at its end that is not complete.
func wholeCharacters(text []byte) int {
	for i := len(text) - 1; i >= max(0, len(text)-utf8.UTFMax); i-- {
		if utf8.RuneStart(text[i]) {
			if utf8.FullRune(text[i:]) {
				break
			}
			return i
		}
	}
	return len(text)
}

// writeRecordings writes NAME.svg for each NAME.cast of a directory.
func writeRecordings(dir string) error {
	names, err := filepath.Glob(filepath.Join(dir, "*.cast"))
	if err != nil {
		return err
	}
	for _, name := range names {
		cast, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		svg, err := play(cast)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(strings.TrimSuffix(name, ".cast")+".svg", []byte(svg), 0o644); err != nil { //nolint:gosec // a picture is for all
			return err
		}
	}
	return nil
}

// frame is what a program printed at once.
type frame struct {
	at    float64 // seconds
	lines []string
}

// escapes are the colours and the like of a terminal.
var escapes = regexp.MustCompile("\x1b(\\[[0-9;?]*[A-Za-z]|\\(B)")

// play makes the moving picture of a recording. It begins again at its end.
func play(cast []byte) (string, error) {
	first, events, _ := bytes.Cut(cast, []byte("\n"))
	var header castHeader
	if err := json.Unmarshal(first, &header); err != nil {
		return "", fmt.Errorf("line 1: %w", err)
	}
	frames, err := framesOf(events)
	if err != nil {
		return "", err
	}
	if len(frames) == 0 {
		return "", errors.New("it has no output")
	}
	total := frames[len(frames)-1].at + atEnd
	var style, body strings.Builder
	shown := 0
	var scroll strings.Builder
	for i, f := range frames {
		percent := 100 * f.at / total
		fmt.Fprintf(&style, "@keyframes f%d{0%%{opacity:0}%.2f%%,100%%{opacity:1}}#f%d{animation-name:f%d}\n", i, percent, i, i)
		fmt.Fprintf(&body, "<g class=\"f\" id=\"f%d\">\n", i)
		for _, line := range f.lines {
			shown++
			class := ""
			if strings.HasPrefix(line, "$ ") {
				class = ` class="command"`
			}
			fmt.Fprintf(&body, "<text x=\"%d\" y=\"%d\"%s>%s</text>\n", inset, shown*lineHeight-descent, class, html.EscapeString(line))
		}
		body.WriteString("</g>\n")
		fmt.Fprintf(&scroll, "%.2f%%{transform:translateY(%dpx)}", percent, -lineHeight*max(0, shown-rows))
	}
	last := -lineHeight * max(0, shown-rows)
	fmt.Fprintf(&style, "@keyframes s{0%%{transform:translateY(0)}%s100%%{transform:translateY(%dpx)}}\n", scroll.String(), last)
	width, height := castWidth, rows*lineHeight+2*inset
	return fmt.Sprintf(player, width, height, width, height, html.EscapeString(header.Title), html.EscapeString(header.Title),
		total, last, style.String(), width, height, inset, width, height-2*inset, body.String()), nil
}

// player is the whole picture. A reader who wants no motion gets the end.
const player = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">
<title>%s</title>
<style>
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d1d7e0;white-space:pre}
.command{fill:#7ee787;font-weight:600}
.f,#s{animation-duration:%.2fs;animation-iteration-count:infinite;animation-timing-function:step-end}
#s{animation-name:s}
@media (prefers-reduced-motion:reduce){.f,#s{animation:none!important}#s{transform:translateY(%dpx)}}
%s</style>
<rect width="%d" height="%d" rx="8" fill="#0d1117"/>
<svg y="%d" width="%d" height="%d"><g id="s">
%s</g></svg>
</svg>
`

// framesOf returns what was printed, with pauses for a reader.
func framesOf(events []byte) ([]frame, error) {
	var frames []frame
	var former, now float64 // of the program, of the picture
	rest := ""
	for i, line := range strings.Split(strings.TrimSpace(string(events)), "\n") {
		var at float64
		var kind, text string
		event := []any{&at, &kind, &text}
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+2, err)
		}
		now += min(at-former, idle)
		former = at
		whole := strings.Split(rest+escapes.ReplaceAllString(strings.ReplaceAll(text, "\r\n", "\n"), ""), "\n")
		rest = whole[len(whole)-1]
		var lines []string
		for _, line := range whole[:len(whole)-1] {
			if strings.HasPrefix(line, "$ ") {
				if len(lines) > 0 {
					frames, lines = append(frames, frame{now, lines}), nil
				}
				if len(frames) > 0 {
					now += toRead
				}
			}
			lines = append(lines, wrapped(line)...)
		}
		if len(lines) > 0 {
			frames = append(frames, frame{now, lines})
		}
	}
	return frames, nil
}

// wrapped breaks a line as a terminal does.
func wrapped(line string) []string {
	var all []string
	for runes := []rune(line); ; runes = runes[columns:] {
		if len(runes) <= columns {
			return append(all, string(runes))
		}
		all = append(all, string(runes[:columns]))
	}
}
