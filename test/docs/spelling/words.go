package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// word is one word with the number of its line in a text, which begin at 0.
type word struct {
	text string
	line int
}

var (
	// notProse are parts of a text that people do not read as words: code spans, which may have line
	// breaks, the targets of links, HTML tags and entities, URLs, and texts in templates of a file.
	notProse = regexp.MustCompile("`+[^`]*`+|\\]\\([^)]*\\)|<[a-zA-Z/!][^>]*>|&[a-z]+;|https?://\\S+|\\{\\{[^}]*\\}\\}")
	// between is what separates the words of a token. Those with a hyphen are one word so far.
	between = regexp.MustCompile(`[/–—]+|--+`)
	// plural is an abbreviation in plural, such as CPUs or podCIDRs.
	plural = regexp.MustCompile(`\p{Lu}{2}s$`)
	// plain is a token that consists of words: those that are not are names, such as a path, a key, a
	// flag or a version.
	plain = regexp.MustCompile(`^[\p{L}'’]+(?:[-/–—]+[\p{L}'’]+)*$`)
)

// words returns the words of a text. A name such as kube-proxy is one word.
func words(text string) []word {
	text = notProse.ReplaceAllStringFunc(text, func(part string) string {
		// A line break keeps the numbers of lines right.
		return strings.Map(func(r rune) rune {
			if r == '\n' {
				return r
			}
			return ' '
		}, part)
	})
	var found []word
	for number, line := range strings.Split(text, "\n") {
		for _, token := range strings.FieldsFunc(line, func(r rune) bool {
			return unicode.IsSpace(r) || strings.ContainsRune(`"“”()[]|*`, r)
		}) {
			token = strings.TrimRight(strings.TrimLeft(token, ",;'"), ".,:;!?'…")
			if !plain.MatchString(token) {
				continue
			}
			for _, part := range between.Split(token, -1) {
				part = strings.TrimSuffix(strings.ReplaceAll(part, "’", "'"), "'s")
				if len(part) > 1 {
					found = append(found, word{part, number})
				}
			}
		}
	}
	return found
}

// split returns the words of a part of a name, such as RuntimeClass, NodePort or OCIRuntime. Those of
// one letter are left out.
func split(name string) []string {
	if plural.MatchString(name) {
		name = strings.TrimSuffix(name, "s")
	}
	var parts []string
	letters := []rune(name)
	begin := 0
	for i := range letters {
		if i == len(letters)-1 || unicode.IsUpper(letters[i+1]) && (unicode.IsLower(letters[i]) || i+2 < len(letters) && unicode.IsLower(letters[i+2])) {
			if i > begin {
				parts = append(parts, string(letters[begin:i+1]))
			}
			begin = i + 1
		}
	}
	return parts
}

// ownWords are the words of words.txt, and whether they have been found.
type ownWords map[string]bool

// readWords reads the text of words.txt: a word a line, in their order.
func readWords(text string) (ownWords, error) {
	own := ownWords{}
	var last string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if order(last, line) >= 0 {
			return nil, fmt.Errorf("words.txt: %q stands after %q: sort the words, each once, without regard to the letter case", line, last)
		}
		own[line] = false
		last = line
	}
	return own, nil
}

// order compares two words for the order of words.txt.
func order(a, b string) int {
	return cmp.Or(cmp.Compare(strings.ToLower(a), strings.ToLower(b)), cmp.Compare(a, b))
}

// has reports whether a word is in the list, and remembers that it was found. A word of the list also
// stands for its plural with an s, and at the beginning of a sentence it has a capital.
func (own ownWords) has(word string) bool {
	lower := word
	if first := []rune(word); unicode.IsUpper(first[0]) {
		lower = string(unicode.ToLower(first[0])) + string(first[1:])
	}
	for _, form := range []string{word, lower, strings.TrimSuffix(word, "s"), strings.TrimSuffix(lower, "s")} {
		if _, ok := own[form]; ok {
			own[form] = true
			return true
		}
	}
	return false
}

// unknown returns the parts of a word that are not in the list: nothing for a word that is in it as a
// whole.
func (own ownWords) unknown(word string) []string {
	if own.has(word) {
		return nil
	}
	var unknown []string
	for part := range strings.SplitSeq(word, "-") {
		if part != "" && !own.has(part) {
			unknown = append(unknown, slices.DeleteFunc(split(part), own.has)...)
		}
	}
	return unknown
}

// unused returns the words that has was never asked for.
func (own ownWords) unused() []string {
	var unused []string
	for word, found := range own {
		if !found {
			unused = append(unused, word)
		}
	}
	slices.SortFunc(unused, order)
	return unused
}
