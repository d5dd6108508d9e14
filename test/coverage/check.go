package main

import (
	"fmt"
	"slices"
)

// check compares the tables with the API and with the tests. Each error names what is wrong.
func check(tables []table, tests testSources, known []ability) []error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	for _, t := range tables {
		covered := map[string]string{}
		for _, r := range t.rows {
			paths, err := r.paths()
			if err != nil {
				fault("%s: row %q: %w", t.what, r.name, err)
			}
			for _, path := range paths {
				switch other, twice := covered[path]; {
				case !slices.Contains(t.api, path):
					fault("%s: row %q names %s, which the API does not have", t.what, r.name, path)
				case twice:
					fault("%s: %s is in two rows, %q and %q", t.what, path, other, r.name)
				}
				covered[path] = r.name
			}
			if err := tests.has(r); err != nil {
				fault("%s: row %q: %w", t.what, r.name, err)
			}
			if tests[r.test].skips[r.name] && !t.isRefused(r) {
				fault("%s: row %q: its test is skipped over the engine docker, which refuses nothing of it", t.what, r.name)
			}
			for _, need := range r.needs {
				if !slices.ContainsFunc(known, func(a ability) bool { return a.name == need }) {
					fault("%s: row %q needs %q, which is no ability", t.what, r.name, need)
				}
			}
		}
		for _, path := range t.api {
			if _, ok := covered[path]; !ok {
				fault("%s: the API has %s, which is in no row", t.what, path)
			}
		}
	}
	return faults
}
