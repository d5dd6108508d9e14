package hostileimage

import (
	"os"
	"strings"
	"testing"
)

// writeDocs has tests write the tables of pages that they otherwise compare.
const writeDocs = "BERTH_WRITE_DOCS"

// Writing reports whether tests write the tables of pages.
func Writing() bool { return os.Getenv(writeDocs) != "" }

// Page compares the first table below a heading of a page with rows, of which the first is the table's head. It writes the
// table if BERTH_WRITE_DOCS is set.
func Page(t testing.TB, path, heading string, rows [][]string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(data), "\n"+heading+"\n")
	text, after, table := strings.Cut(rest, "\n|")
	if !found || !table || strings.Contains(text, "\n#") {
		t.Fatalf("%s has no table below %q", path, heading)
	}
	old := "|" + after
	end := strings.Index(old, "\n\n")
	if end < 0 {
		end = len(old) - 1
	}
	table2 := Markdown(rows)
	if old[:end] == strings.TrimSuffix(table2, "\n") {
		return
	}
	if !Writing() {
		t.Errorf("%s: the table below %q is not what the tests have; %s=1 writes it:\n%s", path, heading, writeDocs, table2)
		return
	}
	page := before + "\n" + heading + "\n" + text + "\n" + strings.TrimSuffix(table2, "\n") + old[end:]
	if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Markdown is a table.
func Markdown(rows [][]string) string {
	var b strings.Builder
	for i, row := range rows {
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
		if i == 0 {
			b.WriteString(strings.Repeat("|---", len(row)) + "|\n")
		}
	}
	return b.String()
}

// Does is what the page says of a row: the text of the error, or what becomes of the image.
func Does(refused, inside string) string {
	if refused == "" {
		return "takes it: " + inside
	}
	return "refuses it: `" + strings.ReplaceAll(refused, "|", `\|`) + "`"
}
