// Package markdown reads the pages of the docs for tests: their code blocks, their prose, their
// headings and their links. It knows the part of Markdown that these pages use.
package markdown

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Page is one Markdown file.
type Page struct {
	// Name is the path of the file below the repository's root, with slashes.
	Name string
	// Blocks are the fenced code blocks, in their order.
	Blocks []Block
	// Prose is every line outside of code blocks and HTML comments.
	Prose []Line
}

// Block is a fenced code block.
type Block struct {
	// Page is the page's name, Line the number of the first line of the text.
	Page string
	Line int
	// Info is what follows the opening fence: the language, and words for tests.
	Info []string
	// Text is the content, without the indentation of the fence.
	Text string
}

// Lang is the language of the block, or "" if the fence names none.
func (b Block) Lang() string {
	if len(b.Info) == 0 {
		return ""
	}
	return b.Info[0]
}

// Place names the block for messages, as PAGE:LINE.
func (b Block) Place() string { return fmt.Sprintf("%s:%d", b.Page, b.Line) }

// Line is one line of prose with its number.
type Line struct {
	Number int
	Text   string
}

// fence is the opening or the closing line of a code block.
var fence = regexp.MustCompile("^( *)```+ *([^`]*)$")

// Parse splits a page. An error is a code block without an end.
func Parse(name, text string) (Page, error) {
	page := Page{Name: name}
	var block *Block
	indent, comment := "", false
	for i, line := range strings.Split(text, "\n") {
		found := fence.FindStringSubmatch(line)
		switch {
		case block != nil && found != nil && found[2] == "":
			page.Blocks = append(page.Blocks, *block)
			block = nil
		case block != nil:
			block.Text += strings.TrimPrefix(line, indent) + "\n"
		case found != nil:
			indent = found[1]
			block = &Block{Page: name, Line: i + 2, Info: strings.Fields(found[2])}
		case comment || strings.HasPrefix(line, "<!--"):
			comment = !strings.Contains(line, "-->")
		default:
			page.Prose = append(page.Prose, Line{i + 1, line})
		}
	}
	if block != nil {
		return page, fmt.Errorf("%s: the code block has no end", block.Place())
	}
	return page, nil
}

// Pages reads the pages for people of a repository: those of docs, and those of its root.
func Pages(root string) ([]Page, error) {
	var names []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "examples/*.md", "examples/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil {
			return nil, err
		}
		names = append(names, found...)
	}
	slices.Sort(names)
	var pages []Page
	for _, file := range names {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return nil, err
		}
		page, err := Parse(filepath.ToSlash(name), string(text))
		if err != nil {
			return nil, err
		}
		pages = append(pages, page)
	}
	return pages, nil
}

// Generated reports whether a program writes the page. A fault in it is a fault of that program.
func (p Page) Generated() bool {
	return slices.Contains([]string{
		"docs/commands.md", "docs/config.md", "docs/doctor.md", "docs/doctor-faults.md", "docs/metrics.md", "docs/node-reference.md", "docs/cluster-reference.md", "docs/cri-coverage.md",
	}, p.Name)
}

// code is a span of code in a line.
var code = regexp.MustCompile("`+[^`]*`+")

// Spans returns the code spans of the page's prose with the numbers of their lines.
func (p Page) Spans() []Line {
	var spans []Line
	for _, line := range p.Prose {
		for _, span := range code.FindAllString(line.Text, -1) {
			spans = append(spans, Line{line.Number, strings.TrimSpace(strings.Trim(span, "`"))})
		}
	}
	return spans
}

// WithoutCode replaces the code spans of a line by spaces.
func WithoutCode(line string) string {
	return code.ReplaceAllStringFunc(line, func(span string) string { return strings.Repeat(" ", len(span)) })
}

// link is a Markdown link or picture: its target.
var link = regexp.MustCompile(`\]\(([^()\s]+)\)`)

// Links returns the targets of the page's links with the numbers of their lines.
func (p Page) Links() []Line {
	var links []Line
	for _, line := range p.Prose {
		for _, found := range link.FindAllStringSubmatch(WithoutCode(line.Text), -1) {
			links = append(links, Line{line.Number, found[1]})
		}
	}
	return links
}

// Heading is a heading with its level, 1 to 6.
type Heading struct {
	Level  int
	Text   string
	Anchor string
}

// Headings returns the headings of the page with the anchors that GitHub and the site give them.
func (p Page) Headings() []Heading {
	var headings []Heading
	seen := map[string]int{}
	for _, line := range p.Prose {
		marks, text, ok := strings.Cut(line.Text, " ")
		if !ok || marks == "" || strings.Trim(marks, "#") != "" || len(marks) > 6 {
			continue
		}
		anchor := Anchor(text)
		seen[anchor]++
		if n := seen[anchor] - 1; n > 0 {
			anchor = fmt.Sprintf("%s-%d", anchor, n)
		}
		headings = append(headings, Heading{len(marks), text, anchor})
	}
	return headings
}

// linked is a link's text.
var linked = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)

// Anchor is the anchor of a heading without another one of the same text on its page: lower case,
// hyphens for spaces, and of punctuation hyphens and underscores only.
func Anchor(heading string) string {
	heading = linked.ReplaceAllString(strings.TrimSpace(heading), "$1")
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}
