package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// repository writes a small one.
func repository(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	all := map[string]string{"README.md": "# R\n", "CONTRIBUTING.md": "# C\n", "SECURITY.md": "# S\n"}
	for name, text := range files {
		all[name] = text
	}
	for name, text := range all {
		if err := writeFile(filepath.Join(root, name), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func good() map[string]string {
	return map[string]string{
		"docs/index.md":        "# Home\n\n## Start\n\n- [A](start/a.md#two): first, then [R](../README.md)\n- [B](b.md)\n",
		"docs/start/a.md":      "# Page A\n\n## Two\n\n```sh\nberth info # <here>\n```\n\n```text\nout\n```\n\n[b](../b.md) [file](../../examples/x.yaml) ![p](../pictures/p.svg)\n",
		"docs/b.md":            "# Page `B`\n\n## One, two\n## One, two\n\n[a](start/a.md#two) [self](#one-two-1) [out](https://example.org/x)\n\n| a | b |\n|---|---|\n| 1 | 2 |\n",
		"docs/pictures/p.txt":  "# P\n[1 a | n] [b]\n-> down\n[c]\n. text\n",
		"docs/pictures/p.svg":  "<svg>picture</svg>\n",
		"examples/x.yaml":      "a: b\n",
		"docs/node.schema.not": "",
	}
}

func TestBuild(t *testing.T) {
	root, out := repository(t, good()), filepath.Join(t.TempDir(), "site")
	if err := build(root, out); err != nil {
		t.Fatal(err)
	}
	for file, wants := range map[string][]string{
		"index.html":                 {`href="start/a.html#two"`, `href="repository/README.html"`, `<title>Home · berth</title>`},
		"start/a.html":               {`<h2 id="two">`, `href="../b.html"`, `href="../repository/examples/x.yaml"`, `<svg>picture</svg>`, `href="../assets/style.css"`, `berth info <span class="c"># &lt;here&gt;</span>`, `aria-current="page"`},
		"b.html":                     {`id="one-two-1"`, `href="start/a.html#two"`, `href="#one-two-1"`, `href="https://example.org/x"`, `<table>`, `<a class="previous" href="start/a.html">`},
		"assets/index.js":            {`"u":"b.html#one-two"`},
		"assets/site.js":             {"clipboard"},
		"assets/style.css":           {"prefers-color-scheme: dark"},
		"repository/examples/x.yaml": {"a: b"},
	} {
		data, err := os.ReadFile(filepath.Join(out, file))
		if err != nil {
			t.Error(err)
		}
		for _, want := range wants {
			if !strings.Contains(string(data), want) {
				t.Errorf("%s lacks %s:\n%s", file, want, data)
			}
		}
	}
	page, _ := os.ReadFile(filepath.Join(out, "start/a.html"))
	if n := strings.Count(string(page), `class="copy"`); n != 1 {
		t.Errorf("%d buttons to copy, want one: that of the command", n)
	}
	if strings.Contains(string(page), "http://") || strings.Contains(string(page), `src="https:`) {
		t.Error("a page fetches something")
	}
}

// TestFaults: a link, an anchor or a navigation that is wrong fails the build, and names the page.
func TestFaults(t *testing.T) {
	for add, want := range map[string]string{
		"[x](none.md)":         "docs/b.md: the link none.md leads nowhere",
		"[x](start/a.md#four)": "docs/b.md: docs/start/a.md has no heading for #four",
		"[x](#four)":           "docs/b.md has no heading for #four",
		"![x](none.svg)":       "docs/b.md: the link none.svg leads nowhere",
	} {
		files := good()
		files["docs/b.md"] += "\n" + add + "\n"
		if err := build(repository(t, files), t.TempDir()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", add, err, want)
		}
	}
	files := good()
	files["docs/c.md"] = "# C\n"
	if err := build(repository(t, files), t.TempDir()); err == nil || !strings.Contains(err.Error(), "docs/c.md is in no section") {
		t.Errorf("a page that the navigation lacks: %v", err)
	}
}

func TestDraw(t *testing.T) {
	svg, err := draw(good()["docs/pictures/p.txt"])
	if err != nil {
		t.Fatal(err)
	}
	decoder := xml.NewDecoder(strings.NewReader(svg))
	for err == nil {
		_, err = decoder.Token()
	}
	if !errors.Is(err, io.EOF) {
		t.Errorf("not XML: %v", err)
	}
	if strings.Count(svg, "<rect") != 3 || strings.Count(svg, "<path") != 1 || !strings.Contains(svg, ">text</text>") {
		t.Errorf("parts are missing:\n%s", svg)
	}
	for text, want := range map[string]string{"[a]\n": "no title", "# t\nwhat\n": "line 2"} {
		if _, err := draw(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
