package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// worse is how far a ratio may fall below the committed one before check reports it: the host's noise
// between two runs is about a fifth.
const worse = 0.7

// check compares the ratios of a result with those of a file, and reports each that has become worse. A
// ratio "A/B" has become worse for berth if berth is B and it fell, or if berth is A and it rose.
func check(w io.Writer, resultFile, ratiosFile string) error {
	got, err := readResult(resultFile)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(ratiosFile)
	if err != nil {
		return err
	}
	var want map[string]float64
	if err := json.Unmarshal(data, &want); err != nil {
		return fmt.Errorf("%s: %w", ratiosFile, err)
	}
	ratios := got.ratios()
	compared, fallen := 0, 0
	for _, name := range slices.Sorted(maps.Keys(want)) {
		ratio, ok := ratios[name]
		if !ok {
			continue
		}
		compared++
		change := ratio / want[name]
		if lessIsBetter(name) {
			change = want[name] / ratio
		}
		if change < worse {
			fallen++
			fmt.Fprintf(w, "worse: %s: %.2f, was %.2f\n", name, ratio, want[name])
		}
	}
	fmt.Fprintf(w, "%d ratios compared, %d worse\n", compared, fallen)
	switch {
	case compared == 0:
		return fmt.Errorf("%s and %s have no ratio in common: were they made with the same flags?", resultFile, ratiosFile)
	case fallen > 0:
		return fmt.Errorf("%d of %d ratios are worse than in %s", fallen, compared, ratiosFile)
	}
	return nil
}

// lessIsBetter reports whether a comparison has berth first: that with the floor.
func lessIsBetter(name string) bool { return strings.HasSuffix(name, "/"+floorName) }

// writeRatios writes the ratios of a result, for check.
func writeRatios(resultFile, ratiosFile string) error {
	got, err := readResult(resultFile)
	if err != nil {
		return err
	}
	data, err := json.MarshalIndent(got.ratios(), "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(ratiosFile, append(data, '\n'), 0o644) //nolint:gosec // committed
}
