package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/text"
)

// home is the page that is the site's home and its navigation.
const home = "docs/index.md"

// site is everything that is read before the first file is written.
type site struct {
	root  string
	pages map[string]*page // by their names
	nav   []section
	// files are the other files that pages link to, by their names.
	files map[string]bool
}

// page is a Markdown file.
type page struct {
	// name is the path below the repository, with slashes.
	name     string
	source   []byte
	doc      ast.Node
	title    string
	headings []heading
	anchors  map[string]bool
}

// heading is a heading below the title.
type heading struct {
	level        int
	text, anchor string
}

// section is a heading of the home page with the pages below it.
type section struct {
	title string
	pages []string
}

// load reads the pages of docs, and those of the repository's root to which they link.
func load(root string) (*site, error) {
	s := &site{root: root, pages: map[string]*page{}, files: map[string]bool{}}
	names := []string{"README.md", "CONTRIBUTING.md", "SECURITY.md"}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(file string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && strings.HasSuffix(file, ".md") {
			name, relErr := filepath.Rel(root, file)
			names = append(names, filepath.ToSlash(name))
			return relErr
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		source, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return nil, err
		}
		s.pages[name] = parse(name, source)
	}
	if s.pages[home] == nil {
		return nil, fmt.Errorf("%s is missing: it is the home page and the navigation", home)
	}
	s.nav = navigation(s.pages[home])
	return s, nil
}

// parse reads a page.
func parse(name string, source []byte) *page {
	p := &page{name: name, source: source, anchors: map[string]bool{}}
	p.doc = markdown().Parser().Parse(text.NewReader(source))
	ids := anchors{}
	_ = ast.Walk(p.doc, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		h, ok := node.(*ast.Heading)
		if !ok || !entering {
			return ast.WalkContinue, nil
		}
		words := plain(h, source)
		anchor := ids.next(words)
		h.SetAttributeString("id", []byte(anchor))
		p.anchors[anchor] = true
		if h.Level == 1 && p.title == "" {
			p.title = words
		} else {
			p.headings = append(p.headings, heading{h.Level, words, anchor})
		}
		return ast.WalkSkipChildren, nil
	})
	if p.title == "" {
		p.title = name
	}
	return p
}

// plain is the text of a node without its markup.
func plain(node ast.Node, source []byte) string {
	var words bytes.Buffer
	_ = ast.Walk(node, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Text:
			words.Write(n.Segment.Value(source))
			if n.SoftLineBreak() {
				words.WriteByte(' ')
			}
		case *ast.String:
			words.Write(n.Value)
		case *ast.AutoLink:
			words.Write(n.URL(source))
		}
		return ast.WalkContinue, nil
	})
	return words.String()
}

// navigation reads the sections of the home page: its headings of level 2, and the first link of each
// item of a list below them.
func navigation(p *page) []section {
	var nav []section
	for node := p.doc.FirstChild(); node != nil; node = node.NextSibling() {
		if h, ok := node.(*ast.Heading); ok && h.Level == 2 {
			nav = append(nav, section{title: plain(h, p.source)})
		}
		list, ok := node.(*ast.List)
		if !ok || len(nav) == 0 {
			continue
		}
		for item := list.FirstChild(); item != nil; item = item.NextSibling() {
			if link := firstLink(item); link != nil {
				target, _ := p.target(string(link.Destination))
				nav[len(nav)-1].pages = append(nav[len(nav)-1].pages, target)
			}
		}
	}
	return nav
}

func firstLink(node ast.Node) *ast.Link {
	var found *ast.Link
	_ = ast.Walk(node, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if link, ok := n.(*ast.Link); ok && entering {
			found = link
			return ast.WalkStop, nil
		}
		return ast.WalkContinue, nil
	})
	return found
}

// outside reports whether a link leads out of the repository.
func outside(link string) bool {
	return strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:")
}

// target resolves a link of the page to the name of a file, and an anchor in it.
func (p *page) target(link string) (name, anchor string) {
	name, anchor, _ = strings.Cut(link, "#")
	if name == "" {
		return p.name, anchor
	}
	return path.Join(path.Dir(p.name), name), anchor
}

// check follows every link, and compares the navigation with the pages. It collects the files that
// pages link to.
func (s *site) check() error {
	var faults []error
	for _, name := range s.names() {
		p := s.pages[name]
		for _, link := range links(p.doc) {
			if outside(link) {
				continue
			}
			target, anchor := p.target(link)
			other := s.pages[target]
			switch {
			case other != nil && anchor != "" && !other.anchors[anchor]:
				faults = append(faults, fmt.Errorf("%s: %s has no heading for #%s", name, target, anchor))
			case other != nil:
			default:
				if _, err := os.Stat(filepath.Join(s.root, target)); err != nil {
					faults = append(faults, fmt.Errorf("%s: the link %s leads nowhere", name, link))
				}
				s.files[target] = true
			}
		}
	}
	in := map[string]bool{home: true}
	for _, section := range s.nav {
		for _, name := range section.pages {
			if in[name] {
				faults = append(faults, fmt.Errorf("%s: %s is there twice", home, name))
			}
			in[name] = true
		}
	}
	for _, name := range s.names() {
		if !in[name] && strings.HasPrefix(name, "docs/") {
			faults = append(faults, fmt.Errorf("%s: %s is in no section", home, name))
		}
	}
	return errors.Join(faults...)
}

// names lists the pages in order.
func (s *site) names() []string {
	names := make([]string, 0, len(s.pages))
	for name := range s.pages {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// links returns the targets of all links and pictures below a node.
func links(doc ast.Node) []string {
	var found []string
	_ = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if entering {
			switch n := n.(type) {
			case *ast.Link:
				found = append(found, string(n.Destination))
			case *ast.Image:
				found = append(found, string(n.Destination))
			}
		}
		return ast.WalkContinue, nil
	})
	return found
}
