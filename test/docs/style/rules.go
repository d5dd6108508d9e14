package main

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/berthrun/berth/test/docs/markdown"
)

// rule is a line of words.txt.
type rule struct {
	pattern *regexp.Regexp
	instead string
}

// exact are words that only their letter case makes wrong.
var exact = regexp.MustCompile(`^(daemonset|kubernetes|github)$`)

// readRules reads the text of words.txt.
func readRules(text string) ([]rule, error) {
	var rules []rule
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		words, instead, ok := strings.Cut(line, " => ")
		if !ok {
			return nil, fmt.Errorf("words.txt: %q has no =>", line)
		}
		for word := range strings.SplitSeq(words, ", ") {
			pattern := strings.ReplaceAll(regexp.QuoteMeta(word), `\*`, `\w*`)
			if !exact.MatchString(word) {
				pattern = "(?i)" + pattern
			}
			pattern = `(?:^|[^\w./-])(` + pattern + `)(?:$|[^\w/.-]|\.(?:\s|$))`
			compiled, err := regexp.Compile(pattern)
			if err != nil {
				return nil, fmt.Errorf("words.txt: %q: %w", word, err)
			}
			rules = append(rules, rule{compiled, instead})
		}
	}
	return rules, nil
}

// quoted is the target of a link, a URL, or a text in quotes, which may be somebody else's.
var quoted = regexp.MustCompile(`\]\([^)]*\)|https?://\S+|"[^"]*"`)

// match returns the words in a line that the rule is about, or "". Code and quotes do not count.
func (r rule) match(line string) string {
	found := r.pattern.FindStringSubmatch(quoted.ReplaceAllString(markdown.WithoutCode(line), " "))
	if found == nil {
		return ""
	}
	return found[1]
}
