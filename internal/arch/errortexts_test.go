package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// textsMatched are the only files of the daemon and the supervisor that may look for
// words in the text of an error, each with its reason. Code anywhere else looks at
// the kind or the type of an error: see package errs.
func textsMatched() map[string]string {
	return map[string]string{
		"internal/errs/ocierror/ocierror.go":        "libcontainer's init sends its errors over a pipe as text",
		"internal/sys/cgroup/limit.go":              "package cgroups replaces the kernel's EBUSY with a text",
		"internal/docker/api/faulttext.go":          "the Docker engine sends a full disk as text",
		"internal/image/dockerstore/errortexts.go":  "the Docker engine sends faults of registries as text",
		"internal/engine/docker/faults/faults.go":   "the Docker engine sends its checks of limits as text",
		"internal/engine/docker/labels/conflict.go": "Docker's API has no field for the owner of a name",
		"internal/errs/message.go":                  "it shortens messages for people and decides nothing",
	}
}

// TestErrorTextsAreNotMatched: no decision depends on the text of an error. The text changes with
// each release of a library.
func TestErrorTextsAreNotMatched(t *testing.T) {
	packages := map[string][]source{}
	err := filepath.WalkDir("../../internal", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, "../../"))
		if entry.IsDir() && (hasOtherRules(name) || entry.Name() == "testdata") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parseSource(name, path, nil)
		packages[filepath.Dir(name)] = append(packages[filepath.Dir(name)], file)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	allowed := textsMatched()
	used := map[string]bool{}
	for _, files := range packages {
		for _, at := range matchesOfErrorTexts(files) {
			if allowed[at.Filename] == "" {
				t.Errorf("%s:%d matches the text of an error: give the error a kind or a type", at.Filename, at.Line)
			}
			used[at.Filename] = true
		}
	}
	for name := range allowed {
		if !used[name] {
			t.Errorf("%s matches no text of an error any more: take it off the list", name)
		}
	}
}

// hasOtherRules reports whether a directory contains no code of the daemon or the supervisor.
// Commands, provisioning and clusters may read what other programs print.
func hasOtherRules(dir string) bool {
	return slices.Contains([]string{"internal/cli", "internal/cluster", "internal/provision", "internal/manifest"}, dir)
}

// source is a parsed file.
type source struct {
	files *token.FileSet
	tree  *ast.File
}

func parseSource(name, path string, content any) (source, error) {
	files := token.NewFileSet()
	tree, err := parser.ParseFile(files, path, content, parser.SkipObjectResolution)
	if err != nil {
		return source{}, fmt.Errorf("cannot parse %s: %w", name, err)
	}
	return source{files, tree}, nil
}

// matchesOfErrorTexts returns the places in a package that search the result of Error(): directly,
// through a variable, or as the argument of a function of the package.
func matchesOfErrorTexts(files []source) []token.Position {
	s := &textSearch{functions: map[string]*ast.FuncDecl{}, texts: map[*ast.FuncDecl]map[string]bool{}}
	for _, file := range files {
		for _, declaration := range file.tree.Decls {
			if f, ok := declaration.(*ast.FuncDecl); ok && f.Body != nil {
				s.texts[f] = map[string]bool{}
				if f.Recv == nil {
					s.functions[f.Name.Name] = f
				}
			}
		}
	}
	for s.grown = true; s.grown; {
		s.grown = false
		for f := range s.texts {
			s.follow(f)
		}
	}
	var found []token.Position
	for _, file := range files {
		for _, declaration := range file.tree.Decls {
			f, ok := declaration.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && s.matches(f, call) {
					at := file.files.Position(call.Pos())
					at.Filename = filepath.ToSlash(strings.TrimPrefix(at.Filename, "../../"))
					found = append(found, at)
				}
				return true
			})
		}
	}
	return found
}

// textSearch knows which variables of each function hold the text of an error.
type textSearch struct {
	functions map[string]*ast.FuncDecl
	texts     map[*ast.FuncDecl]map[string]bool
	grown     bool
}

func (s *textSearch) add(f *ast.FuncDecl, name string) {
	if name != "_" && !s.texts[f][name] {
		s.texts[f][name], s.grown = true, true
	}
}

// follow finds the variables that a function assigns texts to, and the parameters that
// it passes texts as.
func (s *textSearch) follow(f *ast.FuncDecl) {
	ast.Inspect(f.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, to := range n.Lhs {
				from := n.Rhs[0]
				if len(n.Rhs) == len(n.Lhs) {
					from = n.Rhs[i]
				}
				if name, ok := to.(*ast.Ident); ok && s.isText(f, from) {
					s.add(f, name.Name)
				}
			}
		case *ast.CallExpr:
			name, ok := n.Fun.(*ast.Ident)
			if !ok || s.functions[name.Name] == nil {
				return true
			}
			callee := s.functions[name.Name]
			parameters := parametersOf(callee)
			for i, argument := range n.Args {
				if i < len(parameters) && s.isText(f, argument) {
					s.add(callee, parameters[i])
				}
			}
		}
		return true
	})
}

func parametersOf(f *ast.FuncDecl) []string {
	var names []string
	for _, field := range f.Type.Params.List {
		for _, name := range field.Names {
			names = append(names, name.Name)
		}
	}
	return names
}

// isText reports whether an expression is the text of an error, or a part of it.
func (s *textSearch) isText(f *ast.FuncDecl, e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return s.texts[f][e.Name]
	case *ast.SliceExpr:
		return s.isText(f, e.X)
	case *ast.CallExpr:
		callee, ok := e.Fun.(*ast.SelectorExpr)
		switch {
		case !ok:
			return false
		case callee.Sel.Name == "Error" && len(e.Args) == 0:
			return true
		case len(e.Args) == 0:
			return false
		}
		return isOf(callee, "strings") && s.isText(f, e.Args[0])
	}
	return false
}

// matches reports whether a call looks for words in a text of an error.
func (s *textSearch) matches(f *ast.FuncDecl, call *ast.CallExpr) bool {
	callee, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 {
		return false
	}
	words := []string{
		"Contains", "ContainsAny", "HasPrefix", "HasSuffix", "Cut", "CutPrefix", "CutSuffix", "EqualFold", "Index", "LastIndex", "Count",
	}
	pattern := strings.HasPrefix(callee.Sel.Name, "MatchString") || strings.HasPrefix(callee.Sel.Name, "FindString") ||
		strings.HasPrefix(callee.Sel.Name, "FindAllString")
	if !pattern && (!isOf(callee, "strings") || !slices.Contains(words, callee.Sel.Name)) {
		return false
	}
	return slices.ContainsFunc(call.Args, func(e ast.Expr) bool { return s.isText(f, e) })
}

func isOf(callee *ast.SelectorExpr, name string) bool {
	of, ok := callee.X.(*ast.Ident)
	return ok && of.Name == name
}

func TestMatchesOfErrorTextsAreFound(t *testing.T) {
	for body, lines := range map[string][]int{
		`func f(err error) bool { return strings.Contains(err.Error(), "x") }`:                                                             {1},
		"func f(err error) bool {\ntext := err.Error()\nreturn strings.HasPrefix(strings.ToLower(text), \"x\")\n}":                         {3},
		"func f(err error) bool { return g(1, err.Error()) }\nfunc g(n int, text string) bool { return p.MatchString(text) }":              {2},
		"func f(err error) { word, _, _ := strings.Cut(err.Error(), \":\")\nif strings.HasSuffix(word, \"x\") {} }":                        {1, 2},
		`func f(err error) error { return fmt.Errorf("%s", err.Error()) }`:                                                                 nil,
		`func f(text string) bool { return strings.Contains(text, "x") }`:                                                                  nil,
		"func f(err error) string { text := err.Error(); return text }\nfunc g(text string) bool { return strings.Contains(text, \"x\") }": nil,
	} {
		file, err := parseSource("f.go", "f.go", "package p; "+body)
		if err != nil {
			t.Fatal(err)
		}
		got := map[int]bool{}
		for _, at := range matchesOfErrorTexts([]source{file}) {
			got[at.Line] = true
		}
		if found := slices.Sorted(maps.Keys(got)); !slices.Equal(found, lines) {
			t.Errorf("%s: found in lines %v, want %v", body, found, lines)
		}
	}
}
