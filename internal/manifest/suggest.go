package manifest

import (
	"fmt"
	"slices"
	"strings"
)

// suggest names the field that a misspelt one most likely means, or all fields.
func suggest(name string, fields []field) string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	if near := nearest(name, names); near != "" {
		return near
	}
	return "; there are " + strings.Join(names, ", ")
}

func nearest(word string, known []string) string {
	best, least := "", max(2, len(word)/3)+1
	for _, candidate := range known {
		d := distance(strings.ToLower(word), strings.ToLower(candidate))
		if d < least {
			best, least = candidate, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best)
}

// distance is the number of single-letter edits between two words.
func distance(a, b string) int {
	previous := make([]int, len(b)+1)
	for j := range previous {
		previous[j] = j
	}
	for i := range len(a) {
		current := append(make([]int, 0, len(b)+1), i+1)
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			current = append(current, slices.Min([]int{previous[j] + cost, previous[j+1] + 1, current[j] + 1}))
		}
		previous = current
	}
	return previous[len(b)]
}
