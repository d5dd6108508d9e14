package main

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// item is the beginning of an item of a list.
var item = regexp.MustCompile(`^ *(?:[-*]|[0-9]+\.) +`)

// wrapPage breaks the long lines of a page. It fills only paragraphs that have one; all others stay
// as they are.
func wrapPage(text string) string {
	var out, paragraph []string
	flush := func() {
		out = append(out, fill(paragraph)...)
		paragraph = nil
	}
	fenced := false
	for line := range strings.SplitSeq(text, "\n") {
		trimmed := strings.TrimSpace(line)
		isFence := strings.HasPrefix(trimmed, "```")
		switch {
		case isFence, fenced, trimmed == "", trimmed[0] == '|', trimmed[0] == '#', trimmed[0] == '<':
			flush()
			out = append(out, line)
			fenced = fenced != isFence
		case item.MatchString(line):
			flush()
			paragraph = []string{line}
		default:
			paragraph = append(paragraph, line)
		}
	}
	flush()
	return strings.Join(out, "\n")
}

// fill breaks a paragraph at the columns, if a line of it is longer. A link's text may contain a line
// break, and so may a code span that is nearly as long as a line.
func fill(lines []string) []string {
	long := false
	for _, line := range lines {
		long = long || utf8.RuneCountInString(line) > columns
	}
	if !long {
		return lines
	}
	first := item.FindString(lines[0])
	rest := strings.Repeat(" ", len(first))
	if first == "" {
		first = lines[0][:len(lines[0])-len(strings.TrimLeft(lines[0], " "))]
		rest = first
	}
	var filled []string
	current := strings.TrimRight(first, " ")
	for i, word := range pieces(strings.TrimPrefix(strings.Join(lines, " "), first)) {
		switch {
		case i == 0:
			current = first + word
		case utf8.RuneCountInString(current)+1+utf8.RuneCountInString(word) > columns:
			filled = append(filled, current)
			current = rest + word
		default:
			current += " " + word
		}
	}
	return append(filled, current)
}

// pieces splits a text at its white space, but leaves code spans whole: what reads a page line by line
// finds them, as the tests of its commands do. A word that at the beginning of a line would be an item
// of a list or a heading stays with the one before it.
func pieces(text string) []string {
	var pieces []string
	open := false
	for _, word := range strings.Fields(text) {
		last := len(pieces) - 1
		begins := item.MatchString(word+" ") || word[0] == '#'
		if last >= 0 && (begins || open && utf8.RuneCountInString(pieces[last])+utf8.RuneCountInString(word) < columns*3/4) {
			pieces[last] += " " + word
		} else {
			pieces = append(pieces, word)
		}
		open = open != (strings.Count(word, "`")%2 == 1)
	}
	return pieces
}
