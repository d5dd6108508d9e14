// Package scripts types the commands of a page of the docs into terminals, in their order and as the
// page has them. What a test machine lacks is in a table of the test: a command that neither runs
// nor is in the table fails the test, and so does a row of the table that no command has.
package scripts

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mvdan.cc/sh/v3/syntax"

	"github.com/berthrun/berth/test/docs/markdown"
)

// Row is what a test knows of a command of a page.
type Row struct {
	// Line is the command without its comment; of a command with a here-document, its first line.
	Line string
	// Run is typed in its place, or nothing if it is "". Why is the reason; without one, the command
	// itself is typed.
	Run, Why string
	// Prints is a regular expression that the output matches.
	Prints string
	// Ready is what a command prints that stays in the foreground, when it does what the page says.
	// Until is the command of the page before which the reader presses Ctrl-C. See Follow.
	Ready, Until string
}

// of reports whether the row is about a command.
func (r Row) of(line Line) bool {
	return r.Line == line.Text || strings.HasPrefix(line.Text, r.Line+"\n")
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
	t     testing.TB
	page  markdown.Page
	lines []Line
	rows  []Row
	// ran has the commands that have run.
	ran map[Line]bool
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
func Page(t testing.TB, root, name, heading string, rows []Row) *Script {
	t.Helper()
	page, lines := commands(t, root, name)
	return newScript(t, page, below(t, page, lines, heading), rows)
}

// Check compares a table with the whole page that it is for, without a machine. It returns the
// commands of the page.
func Check(t testing.TB, root, name string, rows []Row) []Line {
	t.Helper()
	page, lines := commands(t, root, name)
	for _, fault := range stale(page.Name, lines, rows) {
		t.Error(fault)
	}
	return lines
}

// commands are all those of a page.
func commands(t testing.TB, root, name string) (page markdown.Page, lines []Line) {
	t.Helper()
	page = read(t, root, name)
	for _, block := range page.Blocks {
		if block.Lang() != "sh" {
			continue
		}
		found, err := split(block.Text, block.Line)
		if err != nil {
			t.Fatalf("%s: %v", block.Place(), err)
		}
		lines = append(lines, found...)
	}
	return page, lines
}

// below are the commands below a heading.
func below(t testing.TB, page markdown.Page, lines []Line, heading string) []Line {
	t.Helper()
	first, last, err := section(page, heading)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(slices.Clone(lines), func(line Line) bool { return line.Number < first || line.Number > last })
}

// Block returns the text of a page's first block of a language without another word, below one
// heading or, with "", of all of it.
func Block(t testing.TB, root, name, heading, language string) string {
	t.Helper()
	page := read(t, root, name)
	first, last, err := section(page, heading)
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range page.Blocks {
		if block.Lang() == language && len(block.Info) == 1 && block.Line >= first && block.Line <= last {
			return block.Text
		}
	}
	t.Fatalf("%s has no block of %s", name, language)
	return ""
}

func read(t testing.TB, root, name string) markdown.Page {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	page, err := markdown.Parse(name, string(data))
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// Text is a script that a file other than a page has; name is the file's.
func Text(t testing.TB, name, text string, rows []Row) *Script {
	t.Helper()
	lines, err := split(text, 1)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return newScript(t, markdown.Page{Name: name}, lines, rows)
}

func newScript(t testing.TB, page markdown.Page, lines []Line, rows []Row) *Script {
	t.Helper()
	if len(lines) == 0 {
		t.Fatalf("%s has no commands", page.Name)
	}
	if faults := stale(page.Name, lines, rows); len(faults) > 0 {
		t.Fatal(strings.Join(faults, "\n"))
	}
	s := &Script{t: t, page: page, lines: lines, rows: rows, ran: map[Line]bool{}}
	t.Cleanup(func() {
		if !t.Failed() && !t.Skipped() {
			for _, line := range s.left() {
				t.Errorf("%s: the command did not run: %s", s.place(line), line.Text)
			}
		}
	})
	return s
}

// stale are the faults of a table for these commands.
func stale(name string, lines []Line, rows []Row) (faults []string) {
	find := func(row Row) int { return slices.IndexFunc(lines, row.of) }
	for i, row := range rows {
		at := find(row)
		if at < 0 {
			faults = append(faults, fmt.Sprintf("%s has no command %q: remove it from the test's table", name, row.Line))
		}
		if slices.ContainsFunc(rows[:i], func(other Row) bool { return other.Line == row.Line }) {
			faults = append(faults, fmt.Sprintf("%s: %q has two rows", name, row.Line))
		}
		if row.Run != "" && row.Why == "" {
			faults = append(faults, fmt.Sprintf("%s: the row of %q does not say why something else is typed", name, row.Line))
		}
		if _, err := regexp.Compile(row.Prints); err != nil {
			faults = append(faults, fmt.Sprintf("%s: the row of %q: %v", name, row.Line, err))
		}
		if (row.Ready == "") != (row.Until == "") || row.Ready != "" && find(Row{Line: row.Until}) <= at {
			faults = append(faults, fmt.Sprintf("%s: %q is not ended by Ctrl-C before a later command %q", name, row.Line, row.Until))
		}
	}
	return faults
}

// left are the commands that have not run.
func (s *Script) left() []Line {
	return slices.DeleteFunc(slices.Clone(s.lines), func(line Line) bool { return s.ran[line] })
}

func (s *Script) place(line Line) string { return fmt.Sprintf("%s:%d", s.page.Name, line.Number) }

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
	last := uint(0)
	for _, stmt := range file.Stmts {
		begin, end := stmt.Pos().Offset(), endOf(stmt)
		if begin < last {
			return nil, fmt.Errorf("line %d: a command follows the begin of a here-document: give it a line of its own", at+int(stmt.Pos().Line())-1)
		}
		last = end
		lines = append(lines, Line{Number: at + int(stmt.Pos().Line()) - 1, Text: strings.TrimSpace(text[begin:end])})
	}
	if len(lines) > 0 {
		lines[len(lines)-1].ends = true
	}
	return lines, nil
}

// endOf is the end of a command with all its here-documents. Stmt.End has that of its last redirection alone.
func endOf(stmt *syntax.Stmt) uint {
	end := stmt.End().Offset()
	syntax.Walk(stmt, func(node syntax.Node) bool {
		if redirect, ok := node.(*syntax.Redirect); ok && redirect.Hdoc != nil {
			end = max(end, redirect.Hdoc.End().Offset())
		}
		return true
	})
	return end
}

// row is that of a command, or one of the command alone.
func (s *Script) row(line Line) Row {
	for _, row := range s.rows {
		if row.of(line) {
			return row
		}
	}
	return Row{Line: line.Text}
}

// begin types a command, or what the table has for it.
func (s *Script) begin(sh *Shell, line Line) *Running {
	s.t.Helper()
	s.ran[line] = true
	row, run := s.row(line), strings.TrimSuffix(line.Text, ";")
	if row.Why != "" {
		run = row.Run
		s.t.Logf("%s: instead of %q: %q, because %s", s.place(line), line.Text, run, row.Why)
	}
	return &Running{sh: sh, place: s.place(line) + ": " + run, at: sh.begin(run)}
}

// run runs commands, which must succeed and print what the table has.
func (s *Script) run(sh *Shell, lines []Line) Outputs {
	s.t.Helper()
	var all Outputs
	for _, line := range lines {
		running := s.begin(sh, line)
		text, status := sh.await(running.at)
		s.t.Logf("%s\n%s", running.place, text)
		if status != 0 {
			s.t.Fatalf("%s: exit status %d", running.place, status)
		}
		if prints := s.row(line).Prints; !regexp.MustCompile(prints).MatchString(text) {
			s.t.Fatalf("%s: does not print %s", running.place, prints)
		}
		all = append(all, Output{line, text})
	}
	return all
}

// Lines runs the next commands.
func (s *Script) Lines(sh *Shell, n int) Outputs {
	s.t.Helper()
	left := s.left()
	if len(left) < n {
		s.t.Fatalf("%s has no more commands", s.page.Name)
	}
	return s.run(sh, left[:n])
}

// Block runs the commands up to the end of the block.
func (s *Script) Block(sh *Shell) Outputs {
	s.t.Helper()
	return s.Lines(sh, 1+slices.IndexFunc(s.left(), func(line Line) bool { return line.ends }))
}

// All runs all commands that have not run yet.
func (s *Script) All(sh *Shell) Outputs {
	s.t.Helper()
	return s.Lines(sh, len(s.left()))
}

// Sections runs the commands below some headings, also those that have run: a reader prepares a
// second machine like the first.
func (s *Script) Sections(sh *Shell, headings ...string) Outputs {
	s.t.Helper()
	var all Outputs
	for _, heading := range headings {
		all = append(all, s.run(sh, below(s.t, s.page, s.lines, heading))...)
	}
	return all
}

// Follow is All for a page with commands that stay in the foreground, as the table has them. The
// commands between such a one and Ctrl-C run in a second shell, which open opens.
func (s *Script) Follow(sh *Shell, open func() *Shell) Outputs {
	s.t.Helper()
	var all Outputs
	for left := s.left(); len(left) > 0; left = s.left() {
		row := s.row(left[0])
		if row.Ready == "" {
			all = append(all, s.Lines(sh, 1)...)
			continue
		}
		running := s.Begin(sh)
		running.Await(row.Ready)
		all = append(all, s.Lines(open(), slices.IndexFunc(s.left(), Row{Line: row.Until}.of))...)
		running.Interrupt()
	}
	return all
}

// Begin starts the next command, which stays in the foreground of the shell.
func (s *Script) Begin(sh *Shell) *Running {
	s.t.Helper()
	left := s.left()
	if len(left) == 0 {
		s.t.Fatalf("%s has no more commands", s.page.Name)
	}
	return s.begin(sh, left[0])
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
