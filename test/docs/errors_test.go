package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/docs/markdown"
)

// troubleshooting returns the error texts that have a section in docs/troubleshooting.md: the code
// spans of the headings that begin with one.
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
		if heading.Level != 3 || !strings.HasPrefix(heading.Text, "`") {
			continue
		}
		for _, span := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(heading.Text, -1) {
			texts = append(texts, span[1])
		}
	}
	if len(texts) < 20 {
		t.Fatalf("%s has %d sections about errors", name, len(texts))
	}
	return texts
}

// literals returns the texts of the string constants of a Go file by its functions; those that are
// added to each other are one. Texts outside of functions have the name "".
func literals(t *testing.T, file string) map[string][]string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string][]string{}
	for _, decl := range parsed.Decls {
		name := ""
		if function, ok := decl.(*ast.FuncDecl); ok {
			name = function.Name.Name
		}
		ast.Inspect(decl, func(node ast.Node) bool {
			expression, ok := node.(ast.Expr)
			if !ok {
				return true
			}
			if text, ok := constant(expression); ok {
				texts[name] = append(texts[name], text)
				return false
			}
			return true
		})
	}
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

// gateSources are the files with the errors of the checks around a runtime's restart, and of the
// change from one runtime to another.
var gateSources = []string{
	"internal/provision/node/gates.go", "internal/provision/health/*.go", "internal/provision/crisock/*.go",
	"internal/provision/cniconf/*.go", "internal/provision/kubelet/*.go", "internal/provision/node/handover/*.go",
}

// notGates are functions of gateSources, as FILE or FILE:FUNCTION, whose errors are not for people
// who apply a node file, with the reason.
var notGates = map[string]string{
	"internal/provision/crisock/crisock.go:Dial":             "the endpoint of a gate is made of a path that the reader of the node file has checked",
	"internal/provision/crisock/crisock.go:RemoveImage":      "removes a preloaded image in a rollback, whose error names the image",
	"internal/provision/node/handover/archive.go":            "writes the archive of an image: AdoptImages.Apply wraps the error, and its text has a section",
	"internal/provision/node/handover/containers.go:Running": "a docker that does not answer counts as one without containers, and the error is not shown",
}

// TestErrorsOfGatesHaveASection: each error of gateSources has a section.
func TestErrorsOfGatesHaveASection(t *testing.T) {
	sections := troubleshooting(t)
	found, exempt := 0, map[string]bool{}
	for _, pattern := range gateSources {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			name := strings.TrimPrefix(filepath.ToSlash(file), root+"/")
			for function, texts := range literals(t, file) {
				for _, text := range slices.DeleteFunc(texts, func(text string) bool { return !isError(text) }) {
					if key, ok := notGate(name, function); ok {
						exempt[key] = true
						continue
					}
					found++
					if !slices.ContainsFunc(sections, func(section string) bool { return strings.Contains(text, section) }) {
						t.Errorf("%s: %s: %q has no section in docs/troubleshooting.md, ### `a part of the text`", name, function, text)
					}
				}
			}
		}
	}
	if found < 25 {
		t.Errorf("found %d errors: does the test read the files?", found)
	}
	for key := range notGates {
		if !exempt[key] {
			t.Errorf("notGates: %s has no error: remove the entry", key)
		}
	}
}

// isError reports whether a text is an error of its own: it wraps another one or a kind, and says
// more than that.
func isError(text string) bool {
	return strings.Contains(text, "%w") && len(strings.Trim(verb.ReplaceAllString(text, ""), " :;")) >= 8 && !strings.Contains(text, "its log: journalctl")
}

// notGate returns the entry of notGates for a function.
func notGate(file, function string) (key string, ok bool) {
	for _, key := range []string{file, file + ":" + function} {
		if _, ok := notGates[key]; ok {
			return key, true
		}
	}
	return "", false
}
