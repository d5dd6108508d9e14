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
	s := Page(t, written(t), "page.md", "Part", []Row{{Line: "absent \\\n  --flag", Run: "echo instead", Why: "it is absent", Prints: "^instead\n"}})
	sh := bash(t)
	out := s.Lines(sh, 3)
	if got := s.left()[0].Number; got != 18 {
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

// TestFollow: Ctrl-C ends a command that stays in the foreground before the command of the table,
// and not its shell. The commands between them run in another shell.
func TestFollow(t *testing.T) {
	s := Text(t, "script", "sleep 1000\necho second $X\ncat << 'END'\n$X\nEND\necho $?; echo $X\n", []Row{
		{Line: "sleep 1000", Run: "sh -c 'echo begun; exec sleep 1000'", Why: "the test must see that it runs", Ready: "begun", Until: "cat << 'END'"},
	})
	sh := bash(t)
	sh.Run("X=first")
	out := s.Follow(sh, func() *Shell { return bash(t) })
	for line, want := range map[string]string{"echo second $X": "second\n", "cat << 'END'\n$X\nEND": "$X\n", "echo $X": "first\n"} {
		if got := out.Of(t, line); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	if _, status := sh.Try("exit 3 | false"); status != 1 {
		t.Errorf("exit status %d", status)
	}
}

// TestSections: the commands of a part may run again.
func TestSections(t *testing.T) {
	s := Page(t, written(t), "page.md", "Part", []Row{{Line: "absent \\\n  --flag", Why: "it is absent"}})
	s.All(bash(t))
	sh := bash(t)
	sh.Run("answer=again")
	if got := s.Sections(sh, "Below").Of(t, "echo $answer $PWD"); !strings.HasPrefix(got, "again ") {
		t.Errorf("%q", got)
	}
}

// TestLeft: commands that have not run are known.
func TestLeft(t *testing.T) {
	_, lines := commands(t, written(t), "page.md")
	s := &Script{t: t, lines: lines, ran: map[Line]bool{}}
	s.Lines(bash(t), 1)
	left := s.left()
	if left[0] != (Line{5, `test "$(cat)" = y`, true}) || len(left) != len(lines)-1 {
		t.Errorf("%+v", left)
	}
}

// TestHereDocuments: a command has its here-documents, also if another program reads them or a redirection follows.
func TestHereDocuments(t *testing.T) {
	for _, command := range []string{
		"cat << 'END'\none\nEND", "cat <<END > file\none\nEND", "cat <<END | tee file\none\n\nEND", "cat <<-END && echo two\n\tone\n\tEND",
		"diff <(cat <<A\none\nA\n) - <<B\ntwo\nB", "if true; then cat <<END | tee file\none\nEND\nfi", "cat <<A - 3<<B | tee file\none\nA\ntwo\nB",
	} {
		lines, err := split(command+"\necho next\n", 1)
		if err != nil {
			t.Errorf("%s: %v", command, err)
			continue
		}
		want := []Line{{Number: 1, Text: command}, {Number: 2 + strings.Count(command, "\n"), Text: "echo next", ends: true}}
		if !slices.Equal(lines, want) {
			t.Errorf("%+v, want %+v", lines, want)
		}
	}
	if lines, err := split("cat <<END; echo two\none\nEND\n", 1); err == nil {
		t.Errorf("a command behind the begin of a here-document: %+v", lines)
	}
}

// TestStaleTables: each row is about one command, and has a reason for what it replaces.
func TestStaleTables(t *testing.T) {
	lines, err := split("one\ntwo << 'END'\nEND\n", 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := stale("page.md", lines, []Row{{Line: "one", Run: "1", Why: "no", Ready: "a", Until: "two << 'END'"}, {Line: "two << 'END'", Why: "no"}}); got != nil {
		t.Errorf("%q", got)
	}
	for want, rows := range map[string][]Row{
		`page.md has no command "END": remove it from the test's table`:               {{Line: "END"}},
		`page.md: "one" has two rows`:                                                 {{Line: "one"}, {Line: "one"}},
		`page.md: the row of "one" does not say why something else is typed`:          {{Line: "one", Run: "1"}},
		"page.md: the row of \"one\": error parsing regexp: missing closing ): `(`":   {{Line: "one", Prints: "("}},
		`page.md: "two << 'END'" is not ended by Ctrl-C before a later command "one"`: {{Line: "two << 'END'", Ready: "a", Until: "one"}},
		`page.md: "one" is not ended by Ctrl-C before a later command ""`:             {{Line: "one", Ready: "a"}},
	} {
		if got := stale("page.md", lines, rows); !slices.Equal(got, []string{want}) {
			t.Errorf("%+v: %q, want %q", rows, got, want)
		}
	}
	if lines, err := split("if a\n", 1); err == nil {
		t.Errorf("%+v", lines)
	}
}
