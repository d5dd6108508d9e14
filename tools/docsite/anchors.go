package main

import (
	"fmt"
	"strings"
	"unicode"
)

// anchors counts the anchors of a page. They are those that GitHub gives, so a link works in both.
type anchors map[string]int

// next returns the anchor of the next heading.
func (a anchors) next(heading string) string {
	anchor := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
			return unicode.ToLower(r)
		}
		return -1
	}, strings.TrimSpace(heading))
	n := a[anchor]
	a[anchor]++
	if n > 0 {
		return fmt.Sprintf("%s-%d", anchor, n)
	}
	return anchor
}
