package main

import (
	"fmt"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"
)

// The measures of a picture, in pixels.
const (
	pictureWidth = 760
	margin       = 16
	gap          = 16
	boxHead      = 40
	noteLine     = 17
	arrowHeight  = 44
)

// A picture is written as text, one row a line, from top to bottom:
//
//	# title
//	[1 name | note | note] [2 name]   boxes beside each other; 1, 2 and 3 are colours
//	-> label                          an arrow down; <- is one up, <> one both ways
//	. caption                         a line of text
var box = regexp.MustCompile(`\[(?:([123]) )?([^\]]*)\]`)

// writePictures writes NAME.svg for each NAME.txt of a directory.
func writePictures(dir string) error {
	names, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return err
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		svg, err := draw(string(text))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(strings.TrimSuffix(name, ".txt")+".svg", []byte(svg), 0o644); err != nil { //nolint:gosec // a picture is for all
			return err
		}
	}
	return nil
}

// draw makes the SVG of a picture. An error names the line.
func draw(text string) (string, error) {
	var body strings.Builder
	title, y := "", margin
	for i, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case kind == "#":
			title = rest
		case kind == "->" || kind == "<-" || kind == "<>":
			y = drawArrow(&body, kind, rest, y)
		case kind == ".":
			fmt.Fprintf(&body, "<text class=\"note\" x=\"%d\" y=\"%d\">%s</text>\n", pictureWidth/2, y+13, html.EscapeString(rest))
			y += noteLine + 6
		case strings.HasPrefix(kind, "["):
			y = drawRow(&body, box.FindAllStringSubmatch(line, -1), y)
		default:
			return "", fmt.Errorf("line %d: %q is no box, arrow, caption or title", i+1, line)
		}
	}
	if title == "" {
		return "", fmt.Errorf("the picture has no title: # TITLE")
	}
	return fmt.Sprintf(head, pictureWidth, y+margin, pictureWidth, y+margin, html.EscapeString(title), html.EscapeString(title)) + body.String() + "</svg>\n", nil
}

// head begins a picture. In a page of the site the colours are the page's; alone they are its own.
const head = `<svg xmlns="http://www.w3.org/2000/svg" class="pic" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">
<title>%s</title>
<style>
@media (prefers-color-scheme: dark) { svg.pic:root { --fore: #e6edf3; --soft: #9198a1; --box1: #0c2d4a; --edge1: #4493f8; --box2: #0f2f1a; --edge2: #3fb950; --box3: #332a0a; --edge3: #d29922; --area: #151b23; --line: #3d444d; } }
.pic text { font: 13px system-ui, sans-serif; text-anchor: middle; fill: var(--fore, #1f2328); }
.pic text.name { font-size: 14px; font-weight: 600; }
.pic text.note { fill: var(--soft, #59636e); }
.pic text.label { text-anchor: start; fill: var(--soft, #59636e); }
.pic rect { fill: var(--area, #f6f8fa); stroke: var(--line, #d1d9e0); }
.pic .b1 { fill: var(--box1, #ddf4ff); stroke: var(--edge1, #0969da); }
.pic .b2 { fill: var(--box2, #dafbe1); stroke: var(--edge2, #1a7f37); }
.pic .b3 { fill: var(--box3, #fff8c5); stroke: var(--edge3, #9a6700); }
.pic path { fill: none; stroke: var(--fore, #1f2328); stroke-width: 1.4; }
</style>
`

// drawRow draws boxes beside each other, and returns where the next row begins.
func drawRow(body *strings.Builder, boxes [][]string, y int) int {
	notes := 0
	for _, b := range boxes {
		notes = max(notes, strings.Count(b[2], "|"))
	}
	height := boxHead + notes*noteLine
	width := (pictureWidth - 2*margin - (len(boxes)-1)*gap) / len(boxes)
	for i, b := range boxes {
		x := margin + i*(width+gap)
		fmt.Fprintf(body, "<rect class=\"b%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"6\"/>\n", b[1], x, y, width, height)
		for n, line := range strings.Split(b[2], "|") {
			class := "note"
			if n == 0 {
				class = "name"
			}
			fmt.Fprintf(body, "<text class=\"%s\" x=\"%d\" y=\"%d\">%s</text>\n", class, x+width/2, y+25+n*noteLine, html.EscapeString(strings.TrimSpace(line)))
		}
	}
	return y + height
}

// drawArrow draws an arrow in the middle with its label on the right.
func drawArrow(body *strings.Builder, kind, label string, y int) int {
	x, top, bottom := pictureWidth/2, y+4, y+arrowHeight-4
	if utf8.RuneCountInString(label) > 45 {
		x = pictureWidth / 4
	}
	path := fmt.Sprintf("M%d,%d V%d", x, top, bottom)
	if kind != "<-" {
		path += fmt.Sprintf(" m-5,-7 L%d,%d l5,-7", x, bottom)
	}
	if kind != "->" {
		path += fmt.Sprintf(" M%d,%d L%d,%d l5,7", x-5, top+7, x, top)
	}
	fmt.Fprintf(body, "<path d=\"%s\"/>\n<text class=\"label\" x=\"%d\" y=\"%d\">%s</text>\n", path, x+14, (top+bottom)/2+4, html.EscapeString(label))
	return y + arrowHeight
}
