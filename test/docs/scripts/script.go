// Package scripts types the commands of a page of the docs into terminals, in their order and as the
// page has them. What a test machine lacks is in a table of the test: a command that neither runs
// nor is in the table fails the test, and so does a row of the table that no command has.
package scripts

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mvdan.cc/sh/v3/syntax"

	"github.com/berthrun/berth/test/docs/markdown"
)

// Instead is a command that runs in the place of one of the page.
type Instead struct {
	// Line is the page's command, without its comment.
	Line string
	// Run is the other command; "" if nothing runs.
	Run string
	// Why is what the machine lacks.
	Why string
}

// Line is one command of a page.
type Line struct {
	// Number is that of its first line on the page.
	Number int
	Text   string
	// ends is true for the last command of a block.
	ends bool
}

// Script has the commands of a page.
type Script struct {
	t       testing.TB
	name    string
	lines   []Line
	next    int
	instead []Instead
	used    map[string]bool
}

// Output is what a command has written.
type Output struct {
	Line Line
	Text string
}

// Outputs are those of several commands.
type Outputs []Output

// Of returns the output of a command that has run.
func (o Outputs) Of(t testing.TB, text string) string {
	t.Helper()
	for _, output := range o {
		if output.Line.Text == text {
			return output.Text
		}
	}
	t.Fatalf("the command %q has not run", text)
	return ""
}

// Page reads the blocks `sh` of a page, below one heading or, with "", of all of it. root is the
// repository's. The test fails if it ends before all commands have run.
func Page(t testing.TB, root, name, heading string, instead []Instead) *Script {
	t.Helper()
	page, first, last := read(t, root, name, heading)
	var lines []Line
	for _, block := range page.Blocks {
		if block.Lang() != "sh" || block.Line < first || block.Line > last {
			continue
		}
		found, err := split(block.Text, block.Line)
		if err != nil {
			t.Fatalf("%s: %v", block.Place(), err)
		}
		lines = append(lines, found...)
	}
	return newScript(t, name, lines, instead)
}

// Block returns the text of a page's first block of a language without another word, below one
// heading or, with "", of all of it.
func Block(t testing.TB, root, name, heading, language string) string {
	t.Helper()
	page, first, last := read(t, root, name, heading)
	for _, block := range page.Blocks {
		if block.Lang() == language && len(block.Info) == 1 && block.Line >= first && block.Line <= last {
			return block.Text
		}
	}
	t.Fatalf("%s has no block of %s", name, language)
	return ""
}

// read reads a page, and returns the first and the last line below a heading.
func read(t testing.TB, root, name, heading string) (page markdown.Page, first, last int) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	page, err = markdown.Parse(name, string(data))
	if err != nil {
		t.Fatal(err)
	}
	first, last, err = section(page, heading)
	if err != nil {
		t.Fatal(err)
	}
	return page, first, last
}

// Text is a script that a file other than a page has; name is the file's.
func Text(t testing.TB, name, text string, instead []Instead) *Script {
	t.Helper()
	lines, err := split(text, 1)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return newScript(t, name, lines, instead)
}

func newScript(t testing.TB, name string, lines []Line, instead []Instead) *Script {
	t.Helper()
	if len(lines) == 0 {
		t.Fatalf("%s has no commands", name)
	}
	s := &Script{t: t, name: name, lines: lines, instead: instead, used: map[string]bool{}}
	t.Cleanup(func() {
		if !t.Failed() && !t.Skipped() {
			for _, fault := range s.faults() {
				t.Error(fault)
			}
		}
	})
	return s
}

// faults are the commands that did not run, and rows of the table without a command.
func (s *Script) faults() (all []string) {
	for _, line := range s.lines[s.next:] {
		all = append(all, fmt.Sprintf("%s:%d: the command did not run: %s", s.name, line.Number, line.Text))
	}
	for _, row := range s.instead {
		if !s.used[row.Line] {
			all = append(all, fmt.Sprintf("%s has no command %q: remove it from the test's table", s.name, row.Line))
		}
	}
	return all
}

// section returns the first and the last line below a heading.
func section(page markdown.Page, heading string) (first, last int, err error) {
	const end = 1 << 30
	if heading == "" {
		return 0, end, nil
	}
	level := ""
	for _, line := range page.Prose {
		marks, text, _ := strings.Cut(line.Text, " ")
		if marks == "" || strings.Trim(marks, "#") != "" {
			continue
		}
		switch {
		case level == "" && text == heading:
			level, first = marks, line.Number
		case level != "" && len(marks) <= len(level):
			return first, line.Number, nil
		}
	}
	if level == "" {
		return 0, 0, fmt.Errorf("%s has no heading %q", page.Name, heading)
	}
	return first, end, nil
}

// split returns the commands of a block that begins at a line of its page.
func split(text string, at int) ([]Line, error) {
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
	if err != nil {
		return nil, err
	}
	var lines []Line
	for _, stmt := range file.Stmts {
		lines = append(lines, Line{Number: at + int(stmt.Pos().Line()) - 1, Text: strings.TrimSpace(text[stmt.Pos().Offset():stmt.End().Offset()])})
	}
	if len(lines) > 0 {
		lines[len(lines)-1].ends = true
	}
	return lines, nil
}

// take returns the next command of the page, and what runs for it.
func (s *Script) take() (line Line, run string) {
	s.t.Helper()
	if s.next == len(s.lines) {
		s.t.Fatalf("%s has no more commands", s.name)
	}
	line = s.lines[s.next]
	s.next++
	run = strings.TrimSuffix(line.Text, ";")
	if i := slices.IndexFunc(s.instead, func(row Instead) bool { return row.Line == line.Text }); i >= 0 {
		s.used[line.Text], run = true, s.instead[i].Run
		s.t.Logf("%s:%d: instead of %q: %q, because %s", s.name, line.Number, line.Text, run, s.instead[i].Why)
	}
	return line, run
}

// Lines runs the next commands, which must succeed.
func (s *Script) Lines(sh *Shell, n int) Outputs {
	s.t.Helper()
	var all Outputs
	for range n {
		line, run := s.take()
		if run == "" {
			continue
		}
		begin := sh.begin(run)
		text, status := sh.await(begin)
		if status != 0 {
			s.t.Fatalf("%s:%d: %s: exit status %d\n%s", s.name, line.Number, run, status, text)
		}
		all = append(all, Output{line, text})
	}
	return all
}

// Block runs the commands up to the end of the block.
func (s *Script) Block(sh *Shell) Outputs {
	s.t.Helper()
	n := slices.IndexFunc(s.lines[s.next:], func(line Line) bool { return line.ends })
	return s.Lines(sh, n+1)
}

// All runs all commands that have not run yet.
func (s *Script) All(sh *Shell) Outputs {
	s.t.Helper()
	return s.Lines(sh, len(s.lines)-s.next)
}

// Begin starts the next command, which stays in the foreground of the shell.
func (s *Script) Begin(sh *Shell) *Running {
	s.t.Helper()
	line, run := s.take()
	return &Running{sh: sh, place: fmt.Sprintf("%s:%d: %s", s.name, line.Number, run), at: sh.begin(run)}
}

// Begin starts a command that the page has once and its reader types again.
func (s *Shell) Begin(command string) *Running {
	s.t.Helper()
	return &Running{sh: s, place: command, at: s.begin(command)}
}

// Running is a command in the foreground of a shell.
type Running struct {
	sh    *Shell
	place string
	at    int
}

// Await waits until the command has written a text.
func (r *Running) Await(text string) {
	r.sh.t.Helper()
	r.sh.until(r.place+": waiting for "+text, func(output string) bool { return strings.Contains(output[r.at:], text) })
}

// Interrupt is Ctrl-C. It returns what the command has written, and its exit status.
func (r *Running) Interrupt() (output string, status int) {
	r.sh.t.Helper()
	r.sh.typed("\x03")
	return r.sh.await(r.at)
}
