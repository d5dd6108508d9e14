package markdown

import (
	"reflect"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	page, err := Parse("p.md", strings.Join([]string{
		"# One `two`: three, *four*", "text `berth pod ls` and [link](other.md#a)", "<!-- not", "this -->",
		"- item:", "", "  ```sh", "  berth info", "  ```", "## Same", "## Same", "`[no](link.md)`", "```", "x", "```", "",
	}, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []Block{{"p.md", 8, []string{"sh"}, "berth info\n"}, {"p.md", 14, []string{}, "x\n"}}
	if !reflect.DeepEqual(page.Blocks, want) {
		t.Errorf("blocks: %+v", page.Blocks)
	}
	var anchors []string
	for _, heading := range page.Headings() {
		anchors = append(anchors, heading.Anchor)
	}
	if got := strings.Join(anchors, " "); got != "one-two-three-four same same-1" {
		t.Errorf("anchors: %s", got)
	}
	if links := page.Links(); len(links) != 1 || links[0] != (Line{2, "other.md#a"}) {
		t.Errorf("links: %v", links)
	}
	if spans := page.Spans(); len(spans) != 3 || spans[1] != (Line{2, "berth pod ls"}) {
		t.Errorf("spans: %v", spans)
	}
	if _, err := Parse("p.md", "```sh\n"); err == nil || !strings.Contains(err.Error(), "p.md:2") {
		t.Errorf("a block without an end: %v", err)
	}
}
