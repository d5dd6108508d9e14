package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"html/template"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/yuin/goldmark/ast"
)

//go:embed assets
var assets embed.FS

// layout is what the template of a page gets.
type layout struct {
	Title    string
	Body     template.HTML //nolint:gosec // made from pages of this repository
	Nav      []navSection
	Contents []heading
	// Root is the way from the page to the root of the site; "" at the root.
	Root string
	// Source is the page's file in the repository.
	Source         string
	Previous, Next *navLink
}

type navSection struct {
	Title string
	Open  bool
	Links []navLink
}

type navLink struct {
	Title, Href string
	Current     bool
}

// Text is the heading without markup.
func (h heading) Text() string { return h.text }

// Anchor is the heading's anchor in its page.
func (h heading) Anchor() string { return h.anchor }

// writePages writes each page as HTML.
func (s *site) writePages(out string) error {
	page, err := template.ParseFS(assets, "assets/page.html")
	if err != nil {
		return err
	}
	for _, name := range s.names() {
		p := s.pages[name]
		body, err := s.body(p)
		if err != nil {
			return err
		}
		l := layout{Title: p.title, Body: template.HTML(body), Nav: s.menu(p), Source: name} //nolint:gosec // pages of this repository
		for _, h := range p.headings {
			if h.level == 2 {
				l.Contents = append(l.Contents, h)
			}
		}
		l.Root = strings.Repeat("../", strings.Count(htmlName(name), "/"))
		l.Previous, l.Next = s.neighbours(p)
		var html bytes.Buffer
		if err := page.Execute(&html, l); err != nil {
			return err
		}
		if err := writeFile(filepath.Join(out, htmlName(name)), html.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// menu is the navigation as a page shows it.
func (s *site) menu(p *page) []navSection {
	var menu []navSection
	for _, section := range s.nav {
		m := navSection{Title: section.title}
		for _, name := range section.pages {
			m.Links = append(m.Links, s.navLink(p, name))
			m.Open = m.Open || name == p.name
		}
		menu = append(menu, m)
	}
	return menu
}

func (s *site) navLink(from *page, name string) navLink {
	title := name
	if s.pages[name] != nil {
		title = s.pages[name].title
	}
	return navLink{Title: title, Href: relative(htmlName(from.name), htmlName(name)), Current: name == from.name}
}

// neighbours are the pages before and after a page in its section.
func (s *site) neighbours(p *page) (previous, next *navLink) {
	for _, section := range s.nav {
		for i, name := range section.pages {
			if name != p.name {
				continue
			}
			if i > 0 {
				link := s.navLink(p, section.pages[i-1])
				previous = &link
			}
			if i+1 < len(section.pages) {
				link := s.navLink(p, section.pages[i+1])
				next = &link
			}
		}
	}
	return previous, next
}

// writeFiles copies the files that pages link to. Of a directory it copies what is directly in it,
// with a list.
func (s *site) writeFiles(out string) error {
	var failed []error
	for name := range s.files {
		from := filepath.Join(s.root, name)
		info, err := os.Stat(from)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		if info.IsDir() {
			failed = append(failed, copyDir(from, filepath.Join(out, htmlName(name)), name))
			continue
		}
		failed = append(failed, copyFile(from, filepath.Join(out, htmlName(name))))
	}
	return errors.Join(failed...)
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return writeFile(to, data)
}

// copyDir copies the files of a directory, and makes a page with links to them.
func copyDir(from, to, name string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	var list bytes.Buffer
	list.WriteString("<!doctype html><meta charset=\"utf-8\"><title>" + template.HTMLEscapeString(name) + "</title><ul>")
	for _, entry := range entries {
		if entry.IsDir() {
			continue
		}
		place := fileName(entry.Name())
		if err := copyFile(filepath.Join(from, entry.Name()), filepath.Join(to, place)); err != nil {
			return err
		}
		escaped := template.HTMLEscapeString(place)
		list.WriteString("<li><a href=\"" + escaped + "\">" + escaped + "</a></li>")
	}
	return writeFile(filepath.Join(to, "index.html"), append(list.Bytes(), "</ul>\n"...))
}

// writeAssets writes style and script.
func writeAssets(out string) error {
	return fs.WalkDir(assets, "assets", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path.Base(name) == "page.html" {
			return err
		}
		data, err := assets.ReadFile(name)
		if err != nil {
			return err
		}
		return writeFile(filepath.Join(out, name), data)
	})
}

// entry is a section of a page in the index of the search.
type entry struct {
	Page    string `json:"p"`
	Heading string `json:"h"`
	Link    string `json:"u"`
	Text    string `json:"t"`
}

// writeIndex writes the index of the search, as a script: a browser reads no other file of a site
// that is opened from a disk.
func (s *site) writeIndex(out string) error {
	var entries []entry
	for _, section := range s.nav {
		for _, name := range section.pages {
			if p := s.pages[name]; p != nil {
				entries = append(entries, p.entries()...)
			}
		}
	}
	data, err := json.Marshal(entries)
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(out, "assets", "index.js"), append(append([]byte("window.searchIndex="), data...), ";\n"...))
}

// entries are the sections of a page with their words.
func (p *page) entries() []entry {
	place := htmlName(p.name)
	entries := []entry{{Page: p.title, Link: place}}
	for node := p.doc.FirstChild(); node != nil; node = node.NextSibling() {
		if h, ok := node.(*ast.Heading); ok {
			if h.Level > 1 {
				id, _ := h.AttributeString("id")
				anchor, _ := id.([]byte)
				entries = append(entries, entry{Page: p.title, Heading: plain(h, p.source), Link: place + "#" + string(anchor)})
			}
			continue
		}
		entries[len(entries)-1].Text += plain(node, p.source) + " "
	}
	return entries
}

func writeFile(file string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // a site is for all
		return err
	}
	return os.WriteFile(file, data, 0o644) //nolint:gosec // a site is for all
}
