package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const page = "# Page\n\n```sh\necho one   # a comment\ntest \"$(cat)\" = y\n```\n\n## Part\n\n" +
	"```sh\ncd /\nprintf 'sure? [y/N] '; read -r answer\n```\n\n### Below\n\n```sh\necho $answer $PWD\nabsent \\\n  --flag\n```\n\n" +
	"```text\nnothing\n```\n\n## Next\n\n```sh\nsleep 1000\n```\n"

// written writes the page.
func written(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "page.md"), []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	return root
}

func bash(t *testing.T) *Shell {
	t.Helper()
	return Open(t, exec.CommandContext(t.Context(), "bash", "-c", Reader), time.Minute)
}

// TestPart: the commands of a part run in one shell, on a terminal, which answers questions.
func TestPart(t *testing.T) {
	s := Page(t, written(t), "page.md", "Part", []Instead{{"absent \\\n  --flag", "echo instead", "it is absent"}})
	sh := bash(t)
	out := s.Lines(sh, 3)
	if got := s.lines[s.next].Number; got != 18 {
		t.Errorf("the next command is in line %d", got)
	}
	out = append(out, s.Block(sh)...)
	if got := out.Of(t, "echo $answer $PWD"); got != "y /\n" {
		t.Errorf("%q", got)
	}
	if got := out.Of(t, "absent \\\n  --flag"); got != "instead\n" {
		t.Errorf("%q", got)
	}
}

// TestForeground: Ctrl-C ends a command and not its shell.
func TestForeground(t *testing.T) {
	s := Page(t, written(t), "page.md", "Next", []Instead{{"sleep 1000", "sh -c 'echo begun; exec sleep 1000'", "the test must see that it runs"}})
	sh := bash(t)
	running := s.Begin(sh)
	running.Await("begun")
	if _, status := running.Interrupt(); status != 130 {
		t.Errorf("exit status %d", status)
	}
	if got := sh.Run("echo $((1 + 1))"); !strings.HasSuffix(got, "2\n") {
		t.Errorf("%q", got)
	}
	if _, status := sh.Try("exit 3 | false"); status != 1 {
		t.Errorf("exit status %d", status)
	}
}

// TestFaults: commands that have not run and rows without a command are faults.
func TestFaults(t *testing.T) {
	root := written(t)
	data, err := os.ReadFile(filepath.Join(root, "page.md"))
	if err != nil {
		t.Fatal(err)
	}
	lines, err := split(strings.Split(string(data), "```")[1][len("sh\n"):], 4)
	if err != nil {
		t.Fatal(err)
	}
	s := &Script{t: t, name: "page.md", lines: lines, instead: []Instead{{"echo two", "", "no"}, {"echo one", "", "no"}}, used: map[string]bool{}}
	s.take()
	want := []string{`page.md:5: the command did not run: test "$(cat)" = y`, `page.md has no command "echo two": remove it from the test's table`}
	if got := s.faults(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
