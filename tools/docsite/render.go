package main

import (
	"bytes"
	"fmt"
	"html"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/util"
)

// markdown is the dialect of the pages: CommonMark with tables.
func markdown(options ...renderer.Option) goldmark.Markdown {
	return goldmark.New(goldmark.WithExtensions(extension.Table), goldmark.WithRendererOptions(options...))
}

// htmlName is the place of a page or a file in the site. Pages of docs are at its root.
func htmlName(name string) string {
	if below, ok := strings.CutPrefix(name, "docs/"); ok {
		name = below
	} else {
		name = "repository/" + name
	}
	if base, ok := strings.CutSuffix(name, ".md"); ok {
		return base + ".html"
	}
	return fileName(name)
}

// fileName is the name of a copied file. Go would take a file of its own for a part of the repository's module.
func fileName(name string) string {
	if path.Ext(name) == ".go" {
		return name + ".txt"
	}
	return name
}

// relative is the link from one place of the site to another.
func relative(from, to string) string {
	up := strings.Repeat("../", strings.Count(from, "/"))
	if up != "" {
		if dir := path.Dir(from) + "/"; strings.HasPrefix(to, dir) {
			return strings.TrimPrefix(to, dir)
		}
	}
	return up + to
}

// body renders the Markdown of a page.
func (s *site) body(p *page) (string, error) {
	var out bytes.Buffer
	nodes := &nodes{site: s, page: p}
	err := markdown(renderer.WithNodeRenderers(util.Prioritized(nodes, 1))).Renderer().Render(&out, p.source, p.doc)
	return out.String(), err
}

// nodes renders what the site has in a form of its own: headings with a link to themselves, links to
// pages, pictures in place, code with a button that copies it, tables that scroll.
type nodes struct {
	site *site
	page *page
}

func (n *nodes) RegisterFuncs(r renderer.NodeRendererFuncRegisterer) {
	r.Register(ast.KindHeading, n.heading)
	r.Register(ast.KindLink, n.link)
	r.Register(ast.KindImage, n.image)
	r.Register(ast.KindFencedCodeBlock, n.code)
}

func (n *nodes) heading(w util.BufWriter, _ []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
	h := node.(*ast.Heading) //nolint:forcetypeassert // registered for this kind
	id, _ := h.AttributeString("id")
	if entering {
		fmt.Fprintf(w, `<h%d id="%s">`, h.Level, id)
		return ast.WalkContinue, nil
	}
	if h.Level > 1 {
		fmt.Fprintf(w, ` <a class="anchor" href="#%s" aria-label="Link to this section">#</a>`, id)
	}
	fmt.Fprintf(w, "</h%d>\n", h.Level)
	return ast.WalkContinue, nil
}

// href is the place that a link of the page leads to in the site.
func (n *nodes) href(link string) string {
	if outside(link) {
		return link
	}
	target, anchor := n.page.target(link)
	place := ""
	if target != n.page.name {
		place = relative(htmlName(n.page.name), htmlName(target))
	}
	if anchor != "" {
		place += "#" + anchor
	}
	return place
}

func (n *nodes) link(w util.BufWriter, _ []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
	if entering {
		fmt.Fprintf(w, `<a href="%s">`, html.EscapeString(n.href(string(node.(*ast.Link).Destination))))
	} else {
		fmt.Fprint(w, "</a>")
	}
	return ast.WalkContinue, nil
}

// image puts SVG into the page itself, so that it follows the page's colours.
func (n *nodes) image(w util.BufWriter, source []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		return ast.WalkContinue, nil
	}
	image := node.(*ast.Image) //nolint:forcetypeassert // registered for this kind
	target, _ := n.page.target(string(image.Destination))
	if strings.HasPrefix(target, "docs/pictures/") {
		svg, err := os.ReadFile(filepath.Join(n.site.root, target))
		if err != nil {
			return ast.WalkStop, err
		}
		fmt.Fprintf(w, `<span class="picture">%s</span>`, svg)
		return ast.WalkSkipChildren, nil
	}
	fmt.Fprintf(w, `<img src="%s" alt="%s">`, html.EscapeString(n.href(string(image.Destination))), html.EscapeString(plain(image, source)))
	return ast.WalkSkipChildren, nil
}

// code renders a code block. Commands and files have a button that copies them; output has none.
func (n *nodes) code(w util.BufWriter, source []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		return ast.WalkContinue, nil
	}
	block := node.(*ast.FencedCodeBlock) //nolint:forcetypeassert // registered for this kind
	language := string(block.Language(source))
	var text strings.Builder
	for i := range block.Lines().Len() {
		line := block.Lines().At(i)
		text.Write(line.Value(source))
	}
	fmt.Fprintf(w, `<div class="code"><pre tabindex="0"><code class="language-%s">%s</code></pre>`, html.EscapeString(language), comments(language, text.String()))
	if language != "text" && language != "console" {
		fmt.Fprint(w, `<button type="button" class="copy">Copy</button>`)
	}
	fmt.Fprint(w, "</div>\n")
	return ast.WalkSkipChildren, nil
}

// comments escapes the text of a block, and sets its comments apart, in languages whose comments
// begin with a # after white space.
func comments(language, text string) string {
	switch language {
	case "sh", "bash", "yaml", "toml", "ini", "console":
	default:
		return html.EscapeString(text)
	}
	var out strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		at := -1
		if strings.HasPrefix(line, "#") {
			at = 0
		} else if i := strings.LastIndex(line, " # "); i >= 0 {
			at = i + 1
		}
		if at < 0 {
			out.WriteString(html.EscapeString(line) + "\n")
			continue
		}
		out.WriteString(html.EscapeString(line[:at]) + `<span class="c">` + html.EscapeString(line[at:]) + "</span>\n")
	}
	return out.String()
}
