package start

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"mvdan.cc/sh/v3/syntax"

	"github.com/berthrun/berth/test/docs/markdown"
)

const repository = "../.."

// command is one command of a page, as somebody types it: one line or more.
type command struct {
	page, section, text string
	line                int
}

func (c command) place() string { return fmt.Sprintf("docs/start/%s.md:%d", c.page, c.line) }

// commands are all commands of a page in their order.
func commands(t *testing.T, name string) []command {
	t.Helper()
	file := "docs/start/" + name + ".md"
	text, err := os.ReadFile(filepath.Join(repository, file))
	if err != nil {
		t.Fatal(err)
	}
	page, err := markdown.Parse(file, string(text))
	if err != nil {
		t.Fatal(err)
	}
	var all []command
	for _, block := range page.Blocks {
		if block.Lang() != "sh" {
			t.Errorf("%s: the block is not sh, and nothing here can follow it", block.Place())
			continue
		}
		section := ""
		for _, line := range page.Prose {
			if heading, ok := strings.CutPrefix(line.Text, "## "); ok && line.Number < block.Line {
				section = heading
			}
		}
		parts, err := statements(block.Text)
		if err != nil {
			t.Fatalf("%s: %v", block.Place(), err)
		}
		for _, part := range parts {
			all = append(all, command{name, section, part.text, block.Line + part.line})
		}
	}
	if len(all) < 5 {
		t.Fatalf("%s has %d commands: does the test read the page?", file, len(all))
	}
	return all
}

// statement is a statement of a script. A line counts from 0.
type statement struct {
	text string
	line int
}

// statements splits a script. A statement has its here-document and the comment behind it.
func statements(script string) ([]statement, error) {
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(script), "")
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimRight(script, "\n"), "\n")
	var all []statement
	for i, stmt := range file.Stmts {
		begin, end := int(stmt.Pos().Line())-1, len(lines)
		if i+1 < len(file.Stmts) {
			end = int(file.Stmts[i+1].Pos().Line()) - 1
		}
		if begin == end {
			return nil, fmt.Errorf("line %d has two statements: write one a line", begin+1)
		}
		all = append(all, statement{strings.TrimSpace(strings.Join(lines[begin:end], "\n")), begin})
	}
	return all, nil
}

// bare is the first line of a command, without the comment behind it.
func (c command) bare() string {
	line, _, _ := strings.Cut(c.text, "\n")
	line, _, _ = strings.Cut(line, "  #")
	return strings.TrimSpace(line)
}

func pageNames() []string { return []string{"pod", "cluster", "node"} }

func TestStatements(t *testing.T) {
	got, err := statements("a   # one\ncat > f << 'END'\nb  # two\nEND\n\n# alone\nc \\\n  d\nfor x in 1; do\n  e\ndone\n")
	if err != nil {
		t.Fatal(err)
	}
	want := []statement{{"a   # one", 0}, {"cat > f << 'END'\nb  # two\nEND\n\n# alone", 1}, {"c \\\n  d", 6}, {"for x in 1; do\n  e\ndone", 8}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	for _, wrong := range []string{"a; b\n", "if a\n"} {
		if got, err := statements(wrong); err == nil {
			t.Errorf("%q is %+v", wrong, got)
		}
	}
}

// TestTheTableFits: each row of the table is about a command of the pages.
func TestTheTableFits(t *testing.T) {
	found := map[string]int{}
	for _, page := range pageNames() {
		for _, c := range commands(t, page) {
			found[page+" "+c.bare()]++
		}
	}
	seen := map[string]bool{}
	for _, r := range table() {
		key := r.page + " " + r.command
		if found[key] == 0 {
			t.Errorf("docs/start/%s.md has no command %q: remove its row", r.page, r.command)
		}
		if seen[key] {
			t.Errorf("%q has two rows", key)
		}
		seen[key] = true
		if (r.first != "" || r.instead != "" || r.then != "") != (r.why != "") {
			t.Errorf("%q: a row has a reason exactly if something else is typed", key)
		}
		if (r.ready == "") != (r.until == "") || r.until != "" && found[r.page+" "+r.until] == 0 {
			t.Errorf("%q: docs/start/%s.md has no command %q that Ctrl-C comes before", key, r.page, r.until)
		}
	}
}

// TestVersions: the pages name the Go of go.mod, and the Kubernetes of the other tests.
func TestVersions(t *testing.T) {
	for file, versions := range map[string][2]string{
		"go.mod":             {`(?m)^go (.*)$`, `go\.dev/dl/go([0-9.]+)\.linux`},
		"test/kube/build.sh": {`KUBERNETES_VERSION:-(v[0-9.]+)`, `\b(v1\.[0-9]+\.[0-9]+)\b`},
	} {
		data, err := os.ReadFile(filepath.Join(repository, file))
		if err != nil {
			t.Fatal(err)
		}
		want := regexp.MustCompile(versions[0]).FindStringSubmatch(string(data))
		if want == nil {
			t.Fatalf("%s names no version", file)
		}
		names := 0
		for _, page := range pageNames() {
			for _, c := range commands(t, page) {
				for _, got := range regexp.MustCompile(versions[1]).FindAllStringSubmatch(c.text, -1) {
					names++
					if got[1] != want[1] {
						t.Errorf("%s: %s, and %s has %s", c.place(), got[1], file, want[1])
					}
				}
			}
		}
		if names == 0 {
			t.Errorf("the pages do not name the version of %s", file)
		}
	}
}
