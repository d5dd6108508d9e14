package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
)

// testSource is one test function in its file.
type testSource struct {
	file string // as it was found
	// texts are the strings that name its subtests, and more: arguments of calls that
	// run one, and elements of tables.
	texts map[string]bool
	// skips are the names of the subtests that are skipped over an engine.
	skips map[string]bool
}

// testSources are the test functions of a package by name.
type testSources map[string]testSource

// readTests reads the test functions of a directory, with any build tags.
func readTests(dir string) (testSources, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no tests are in %s", dir)
	}
	found := testSources{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, declaration := range parsed.Decls {
			f, ok := declaration.(*ast.FuncDecl)
			if ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				found[f.Name.Name] = testSource{filepath.Base(file), textsOf(f), skipsOf(f)}
			}
		}
	}
	return found, nil
}

func textsOf(f *ast.FuncDecl) map[string]bool {
	texts := map[string]bool{}
	note := func(e ast.Expr) {
		if pair, ok := e.(*ast.KeyValueExpr); ok {
			e = pair.Key
		}
		if literal, ok := e.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			if text, err := strconv.Unquote(literal.Value); err == nil {
				texts[text] = true
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			for _, element := range n.Elts {
				note(element)
			}
		case *ast.CallExpr:
			if method, ok := n.Fun.(*ast.SelectorExpr); ok && (method.Sel.Name == "Run" || method.Sel.Name == "try") {
				for _, argument := range n.Args {
					note(argument)
				}
			}
		}
		return true
	})
	return texts
}

// skipsOf returns the names of the subtests that ask for what an engine may lack (Needs of package
// harness), in their own function literal.
func skipsOf(f *ast.FuncDecl) map[string]bool {
	skips := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		name, needs := "", false
		for _, argument := range call.Args {
			switch argument := argument.(type) {
			case *ast.BasicLit:
				if text, err := strconv.Unquote(argument.Value); err == nil && argument.Kind == token.STRING {
					name = text
				}
			case *ast.FuncLit:
				ast.Inspect(argument, func(n ast.Node) bool {
					if method, ok := n.(*ast.SelectorExpr); ok && (method.Sel.Name == "Needs" || method.Sel.Name == "NeedsPart") {
						needs = true
					}
					return true
				})
			}
		}
		if name != "" && needs {
			skips[name] = true
		}
		return true
	})
	return skips
}

// has returns what is wrong with a row's test, nil for nothing.
func (s testSources) has(r row) error {
	source, ok := s[r.test]
	switch {
	case !ok:
		return fmt.Errorf("there is no test %s", r.test)
	case !r.whole && !source.texts[r.name]:
		return fmt.Errorf("%s in %s has no subtest of the row's name", r.test, source.file)
	}
	return nil
}
