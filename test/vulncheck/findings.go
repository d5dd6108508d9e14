package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

//go:embed allowed.txt
var allowedText string

// identifier is how the database names a vulnerability.
var identifier = regexp.MustCompile(`^GO-\d{4}-\d{4,}$`)

// parseAllowed reads the list of allowed vulnerabilities: each with a reason of several words.
func parseAllowed(text string) (map[string]string, error) {
	allowed := map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		id, reason, _ := strings.Cut(line, " ")
		if !identifier.MatchString(id) {
			return nil, fmt.Errorf("allowed.txt: %q is not the ID of a vulnerability, such as GO-2025-1234", id)
		}
		if len(strings.Fields(reason)) < 3 {
			return nil, fmt.Errorf("allowed.txt: %s has no reason", id)
		}
		allowed[id] = strings.TrimSpace(reason)
	}
	return allowed, nil
}

// finding is a vulnerability that the code reaches.
type finding struct {
	id, summary, module, version, fixed string
	// calls are the functions of the way from our code to it, ours last.
	calls []string
}

// message is one value of govulncheck's JSON stream. Fields that are not needed are left out.
type message struct {
	OSV *struct {
		ID      string `json:"id"`
		Summary string `json:"summary"`
	} `json:"osv"`
	Finding *struct {
		OSV          string `json:"osv"`
		FixedVersion string `json:"fixed_version"`
		Trace        []struct {
			Module   string `json:"module"`
			Version  string `json:"version"`
			Package  string `json:"package"`
			Function string `json:"function"`
			Receiver string `json:"receiver"`
		} `json:"trace"`
	} `json:"finding"`
}

// readFindings reads govulncheck's JSON. Findings without a function are about modules and packages
// that the code has and does not call; they are left out. Of several ways to one vulnerability it
// keeps the first.
func readFindings(r io.Reader) ([]finding, error) {
	summaries, found := map[string]string{}, map[string]finding{}
	for d := json.NewDecoder(r); ; {
		var m message
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("cannot read the output of govulncheck: %w", err)
		}
		if m.OSV != nil {
			summaries[m.OSV.ID] = m.OSV.Summary
		}
		if f := m.Finding; f != nil && len(f.Trace) > 0 && f.Trace[0].Function != "" {
			if _, known := found[f.OSV]; known {
				continue
			}
			v := finding{id: f.OSV, module: f.Trace[0].Module, version: f.Trace[0].Version, fixed: f.FixedVersion}
			for _, step := range f.Trace {
				v.calls = append(v.calls, strings.TrimPrefix(step.Package+"."+strings.TrimPrefix(step.Receiver+".", ".")+step.Function, "."))
			}
			found[f.OSV] = v
		}
	}
	list := make([]finding, 0, len(found))
	for _, id := range slices.Sorted(maps.Keys(found)) {
		v := found[id]
		v.summary = summaries[id]
		list = append(list, v)
	}
	return list, nil
}

// report prints all findings. It returns an error that names those that are not allowed, and
// prints which allowed ones were not found.
func report(out io.Writer, found []finding, allowed map[string]string) error {
	var faults []string
	for _, v := range found {
		fmt.Fprintf(out, "vulncheck: %s: %s\n  in %s %s, fixed in %s\n  called by %s\n", v.id, v.summary, v.module, v.version, v.fix(), strings.Join(v.calls, " < "))
		if reason, ok := allowed[v.id]; ok {
			fmt.Fprintf(out, "  allowed: %s\n", reason)
		} else {
			faults = append(faults, v.id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(allowed)) {
		if !slices.ContainsFunc(found, func(v finding) bool { return v.id == id }) {
			fmt.Fprintf(out, "vulncheck: %s is allowed and was not found: remove it from allowed.txt\n", id)
		}
	}
	if len(faults) > 0 {
		return fmt.Errorf("the code reaches %s: upgrade the modules, or add the IDs with a reason to test/vulncheck/allowed.txt", strings.Join(faults, ", "))
	}
	return nil
}

func (v finding) fix() string {
	if v.fixed == "" {
		return "no version"
	}
	return v.fixed
}
