// Command style checks the prose of the docs: words that they do not use, lines with more than
// 100 columns, and white space at the end of lines. words.txt has the words.
//
// With -wrap PAGE... it breaks the long lines of pages.
package main

import (
	_ "embed"
	"flag"
	"fmt"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/berthrun/berth/test/docs/markdown"
)

//go:embed words.txt
var words string

// columns is how long a line of prose may be.
const columns = 100

func main() {
	wrap := flag.Bool("wrap", false, "break the long lines of the pages that follow")
	flag.Parse()
	if err := run(*wrap, flag.Args()); err != nil {
		fmt.Fprintf(os.Stderr, "style: %v\n", err)
		os.Exit(1)
	}
}

func run(wrap bool, names []string) error {
	if wrap {
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			if err := os.WriteFile(name, []byte(wrapPage(string(text))), 0o644); err != nil { //nolint:gosec // a page is for all
				return err
			}
		}
		return nil
	}
	pages, err := markdown.Pages(".")
	if err != nil {
		return err
	}
	rules, err := readRules(words)
	if err != nil {
		return err
	}
	faults := 0
	for _, page := range pages {
		for _, fault := range check(page, rules) {
			faults++
			fmt.Println(fault)
		}
	}
	if faults > 0 {
		return fmt.Errorf("%d faults; the words are in test/docs/style/words.txt; -wrap breaks long lines", faults)
	}
	return nil
}

// check returns the faults of a page, as PAGE:LINE: FAULT. Pages that a program writes may have long
// lines.
func check(page markdown.Page, rules []rule) []string {
	var faults []string
	for _, line := range page.Prose {
		fault := func(format string, args ...any) {
			faults = append(faults, fmt.Sprintf("%s:%d: %s", page.Name, line.Number, fmt.Sprintf(format, args...)))
		}
		if strings.TrimRight(line.Text, " \t\r") != line.Text {
			fault("white space at the end")
		}
		if n := utf8.RuneCountInString(line.Text); n > columns && !page.Generated() && breaks(line.Text) {
			fault("%d columns, more than %d", n, columns)
		}
		if page.Generated() {
			continue
		}
		for _, rule := range rules {
			if found := rule.match(line.Text); found != "" {
				fault("%q: write %s", found, rule.instead)
			}
		}
	}
	return faults
}

// breaks reports whether a line could be broken: rows of tables and headings are one line each, and
// so is a link that is longer than a line.
func breaks(line string) bool {
	text := strings.TrimSpace(line)
	return !strings.HasPrefix(text, "|") && !strings.HasPrefix(text, "#") && strings.Contains(strings.TrimLeft(text, "-*0123456789. "), " ")
}
