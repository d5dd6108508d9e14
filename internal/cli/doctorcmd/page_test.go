package doctorcmd

import (
	"slices"
	"strings"
	"testing"

	check "github.com/berthrun/berth/internal/doctor"

	"github.com/berthrun/berth/internal/cluster/doctor"
	"github.com/berthrun/berth/test/docs/markdown"
)

// TestAnchors: each check has a section, whose anchor its warnings and problems name; no section is of a check that does
// not exist, and no line is longer than those of other pages.
func TestAnchors(t *testing.T) {
	page, err := markdown.Parse(check.DocsPage, Page())
	if err != nil {
		t.Fatal(err)
	}
	anchors := map[string]bool{}
	for _, heading := range page.Headings() {
		if heading.Level == 3 {
			anchors[heading.Anchor] = true
		}
	}
	for _, info := range slices.Concat(checks(), doctor.Checks()) {
		_, anchor, _ := strings.Cut(info.Docs(), "#")
		if !anchors[anchor] {
			t.Errorf("check %s: %s has no section of its anchor", info.ID, info.Docs())
		}
		delete(anchors, anchor)
	}
	for anchor := range anchors {
		t.Errorf("the page has a section #%s, which is of no check", anchor)
	}
	for line := range strings.Lines(Page()) {
		if len(strings.TrimSuffix(line, "\n")) > columns && !strings.HasPrefix(line, "|") {
			t.Errorf("longer than %d: %s", columns, line)
		}
	}
}
