package main

import (
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/engine/docker/translate"
)

// refusals are what the engine docker refuses of a row.
func (t *table) refusals(r row) []translate.Refusal {
	paths, _ := r.paths() // check reports the error
	var found []translate.Refusal
	for _, refusal := range translate.Refusals() {
		if refused := t.refused(refusal); slices.ContainsFunc(paths, func(path string) bool { return translate.Covers(refused, path) }) {
			found = append(found, refusal)
		}
	}
	return found
}

// isRefused reports whether the engine docker refuses all fields of a row, with any version of the API.
func (t *table) isRefused(r row) bool {
	paths, _ := r.paths() // check reports the error
	refusals := t.refusals(r)
	return !slices.ContainsFunc(paths, func(path string) bool {
		return !slices.ContainsFunc(refusals, func(refusal translate.Refusal) bool {
			return refusal.From == "" && !refusal.Partly && translate.Covers(t.refused(refusal), path)
		})
	})
}

// dockerVerdict is how the engine docker handles a row.
func (t *table) dockerVerdict(r row) string {
	if r.later {
		return "Unimplemented"
	}
	words := []string{"✔"}
	if t.isRefused(r) {
		words = nil
	}
	for _, refusal := range t.refusals(r) {
		text := "refused: " + refusal.Request
		if refusal.From != "" {
			text += " before API " + refusal.From
		}
		words = append(words, text+". "+strings.ToUpper(refusal.Reason[:1])+refusal.Reason[1:]+".")
	}
	return strings.Join(words, "<br>")
}

// dockerTests is the pattern of the tests of all rows, for -run: `make e2e` runs them over the engine
// docker, which is what its column promises.
func dockerTests(tables []table) string {
	var names []string
	for _, t := range tables {
		for _, r := range t.rows {
			names = append(names, r.test)
		}
	}
	slices.Sort(names)
	return "^(" + strings.Join(slices.Compact(names), "|") + ")$"
}
