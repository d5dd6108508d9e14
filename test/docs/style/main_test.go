package main

import (
	"strings"
	"testing"

	"github.com/berthrun/berth/test/docs/markdown"
)

func TestCheck(t *testing.T) {
	rules, err := readRules(words)
	if err != nil {
		t.Fatal(err)
	}
	for text, fault := range map[string]string{
		"The daemon tells the kubelet.":                     "tells",
		"It is `simply` a flag, \"simply so\" as they say.": "",
		"Simply run it.":                                    "Simply",
		"adjust and justify":                                "",
		"An [a](docs/told.md) and ./just":                   "",
		"a kubernetes cluster":                              "kubernetes",
		"kubernetes.io and Kubernetes":                      "",
		"Utilises":                                          "Utilises",
		"end ":                                              "white space",
		strings.Repeat("word ", 30) + "end":                 "columns",
		"| " + strings.Repeat("word ", 30) + "|":            "",
		"- https://example.org/" + strings.Repeat("x", 100): "",
	} {
		page, err := markdown.Parse("docs/x.md", text)
		if err != nil {
			t.Fatal(err)
		}
		faults := check(page, rules)
		if (len(faults) == 0) != (fault == "") || fault != "" && !strings.Contains(faults[0], fault) {
			t.Errorf("%q: %q, want %q", text, faults, fault)
		}
	}
}

func TestWrap(t *testing.T) {
	long := strings.Repeat("word ", 25) + "end"
	text := "# " + long + "\n\n- " + long + "\n  more\n- short\n\n```sh\n" + long + "\n```\n\n| " + long + " |\n\nshort\nlines\n"
	got := wrapPage(text)
	if strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(text), " ") {
		t.Errorf("words differ:\n%s", got)
	}
	for _, kept := range []string{"# " + long + "\n", "```sh\n" + long + "\n```", "| " + long + " |", "\nshort\nlines\n", "\n- short\n", "\n  word"} {
		if !strings.Contains(got, kept) {
			t.Errorf("%q is missing in\n%s", kept, got)
		}
	}
	span := strings.Repeat("word ", 17) + "`berth pod run -f web.yaml` " + long
	if got := wrapPage(span); !strings.Contains(got, "\n`berth pod run -f web.yaml` ") {
		t.Errorf("the code span is not whole:\n%s", got)
	}
	for _, number := range []string{"30.", "#", "-"} {
		if got := wrapPage(strings.Repeat("word ", 19) + "last " + number + " " + long); !strings.Contains(got, "\nlast "+number) {
			t.Errorf("%s may begin a list or a heading:\n%s", number, got)
		}
	}
	if page, err := markdown.Parse("docs/x.md", got); err != nil || len(check(page, nil)) > 0 {
		t.Errorf("still: %v %q", err, check(page, nil))
	}
	if again := wrapPage(got); again != got {
		t.Errorf("a second time:\n%s", again)
	}
}
