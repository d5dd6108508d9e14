package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// advisories are the vulnerabilities of other runtimes that SECURITY.md has a line for.
var advisories = strings.Fields(`
	2022-23471 2022-31030 2023-25809 2023-27561 2023-28642 2023-6476 2024-11218 2024-1753 2024-21626 2024-23650
	2024-23651 2024-23652 2024-23653 2024-25621 2024-3056 2024-3154 2024-3727 2024-40635 2024-41110 2024-45310
	2024-5154 2024-8676 2024-9407 2024-9675 2025-0750 2025-31133 2025-4437 2025-46599 2025-47290 2025-47291
	2025-52565 2025-52881 2025-54388 2025-54410 2025-64329 2025-67499 2025-9566 2026-15809 2026-33747 2026-33748
	2026-34040 2026-41567 2026-41568 2026-41579 2026-42306 2026-44517 2026-46680 2026-47262 2026-50195 2026-53488
	2026-53489 2026-53492 2026-54250 2026-55686`)

var (
	advisoryID = regexp.MustCompile(`CVE-([0-9]{4}-[0-9]{4,})`)
	testName   = regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9_]+)`")
)

// TestSecurityPageNamesTests: each advisory has a line in SECURITY.md. Each line names existing
// tests, or says why it has none.
func TestSecurityPageNamesTests(t *testing.T) {
	page, err := os.ReadFile("../../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	tests, err := testsBelow("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range faultsOfPage(string(page), advisories, tests) {
		t.Error(fault)
	}
}

// faultsOfPage returns the errors in the page's table of advisories.
func faultsOfPage(page string, advisories []string, tests map[string]bool) []string {
	var faults []string
	seen := map[string]bool{}
	_, table, found := strings.Cut(page, "\n| advisories |")
	if !found {
		return []string{"SECURITY.md has no table of advisories"}
	}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if !strings.HasPrefix(line, "| ") || len(cells) != 3 {
			continue // the table's head, its rule, and what follows it
		}
		row := strings.TrimSpace(cells[0])
		for _, id := range advisoryID.FindAllStringSubmatch(row, -1) {
			if seen[id[1]] {
				faults = append(faults, fmt.Sprintf("CVE-%s is there twice", id[1]))
			}
			seen[id[1]] = true
		}
		named := testName.FindAllStringSubmatch(cells[2], -1)
		for _, name := range named {
			if !tests[name[1]] {
				faults = append(faults, fmt.Sprintf("%s: there is no test %s", row, name[1]))
			}
		}
		reason, none := strings.CutPrefix(strings.TrimSpace(cells[2]), "None:")
		if none == (len(named) > 0) || none && strings.TrimSpace(reason) == "" {
			faults = append(faults, row+": want tests, or `None: ` and the reason")
		}
	}
	for _, id := range advisories {
		if !seen[id] {
			faults = append(faults, "CVE-"+id+" is in no line")
		}
	}
	return faults
}

// testsBelow returns the names of all test and fuzz functions, with any build tags.
func testsBelow(root string) (map[string]bool, error) {
	tests := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, declaration := range file.Decls {
			if f, ok := declaration.(*ast.FuncDecl); ok && f.Recv == nil {
				tests[f.Name.Name] = true
			}
		}
		return nil
	})
	return tests, err
}

func TestFaultsOfTheSecurityPageAreNamed(t *testing.T) {
	const head = "# Page\n\n| advisories | what happened | tests here |\n|---|---|---|\n"
	for row, want := range map[string]string{
		"| a CVE-2020-1111 | x | `TestThere`, and words |":                           "",
		"| a CVE-2020-1111 | x | None: part not built, there are no x |":             "",
		"| a CVE-2020-1111 | x | `TestGone` |":                                       "a CVE-2020-1111: there is no test TestGone",
		"| a CVE-2020-1111 | x | |":                                                  "a CVE-2020-1111: want tests, or `None: ` and the reason",
		"| a CVE-2020-1111 | x | None: |":                                            "a CVE-2020-1111: want tests, or `None: ` and the reason",
		"| a CVE-2020-1111 | x | None: but `TestThere` is |":                         "a CVE-2020-1111: want tests, or `None: ` and the reason",
		"| a CVE-2020-2222 | x | `TestThere` |":                                      "CVE-2020-1111 is in no line",
		"| a CVE-2020-1111 | x | `TestThere` |\n| CVE-2020-1111 | x | `TestThere` |": "CVE-2020-1111 is there twice",
	} {
		got := faultsOfPage(head+row+"\n", []string{"2020-1111"}, map[string]bool{"TestThere": true})
		if want == "" && len(got) > 0 || want != "" && !slices.Contains(got, want) {
			t.Errorf("%s: %q, want %q", row, got, want)
		}
	}
	if got := faultsOfPage("# Page\n", nil, nil); len(got) != 1 {
		t.Errorf("a page without a table: %q", got)
	}
}
