package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/docs/markdown"
)

// troubleshooting returns the error texts that have a section in docs/troubleshooting.md.
func troubleshooting(t *testing.T) []string {
	t.Helper()
	const name = "docs/troubleshooting.md"
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	page, err := markdown.Parse(name, string(text))
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, heading := range page.Headings() {
		if quoted := strings.Trim(heading.Text, "`"); heading.Level == 3 && quoted != heading.Text {
			texts = append(texts, quoted)
		}
	}
	if len(texts) < 20 {
		t.Fatalf("%s has %d sections about errors", name, len(texts))
	}
	return texts
}

// literals returns the texts of a Go file's string constants; those that are added to each other
// are one.
func literals(t *testing.T, file string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	ast.Inspect(parsed, func(node ast.Node) bool {
		expression, ok := node.(ast.Expr)
		if !ok {
			return true
		}
		if text, ok := constant(expression); ok {
			texts = append(texts, text)
			return false
		}
		return true
	})
	return texts
}

func constant(node ast.Expr) (string, bool) {
	switch node := node.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(node.Value)
		return text, err == nil && node.Kind == token.STRING
	case *ast.BinaryExpr:
		left, ok := constant(node.X)
		right, okRight := constant(node.Y)
		return left + right, ok && okRight && node.Op == token.ADD
	}
	return "", false
}

// TestErrorsExist: each error that has a section in docs/troubleshooting.md is in the code.
func TestErrorsExist(t *testing.T) {
	missing := map[string]bool{}
	for _, text := range troubleshooting(t) {
		missing[text] = true
	}
	err := filepath.WalkDir(filepath.Join(root, "internal"), func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for text := range missing {
			if strings.Contains(string(data), text) {
				delete(missing, text)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for text := range missing {
		t.Errorf("docs/troubleshooting.md has a section for %q, which is in no message of the code", text)
	}
}

// verb is a verb of fmt.
var verb = regexp.MustCompile(`%(?:\[\d+\])?[-+#]*[a-z]`)

// TestErrorsOfGatesHaveASection: each error of the checks around a runtime's restart has a section.
func TestErrorsOfGatesHaveASection(t *testing.T) {
	sections := troubleshooting(t)
	found := 0
	for _, pattern := range []string{"internal/provision/node/gates.go", "internal/provision/health/*.go"} {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for _, text := range literals(t, file) {
				// An error wraps another one or a kind, and says more than that.
				if !strings.Contains(text, "%w") || len(strings.Trim(verb.ReplaceAllString(text, ""), " :;")) < 8 || strings.Contains(text, "its log: journalctl") {
					continue
				}
				found++
				has := false
				for _, section := range sections {
					has = has || strings.Contains(text, section)
				}
				if !has {
					t.Errorf("%s: %q has no section in docs/troubleshooting.md, ### `a part of the text`", file, text)
				}
			}
		}
	}
	if found < 8 {
		t.Errorf("found %d errors: does the test read the files?", found)
	}
}
