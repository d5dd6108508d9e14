package main

import (
	"fmt"
	"strings"
)

// head introduces the page. The text must not depend on the machine.
const head = "# CRI, call by call and field by field\n\n" +
	"<!-- Made by `make generate` from test/coverage. Do not edit. -->\n\n" +
	"This page has every call of the two services of CRI v1 (`k8s.io/cri-api` in `go.mod`). It has every field of the two\n" +
	"messages that describe a pod and a container, except those for Windows. Each row is one test on a real berth, in\n" +
	"`test/integration`: a subtest with the row's name, or a whole test if that has the row's name. `make verify` fails if the\n" +
	"API has a call or a field without a row, if a row names one that the API does not have, and if a row's test does not exist.\n\n" +
	"| | |\n|---|---|\n" +
	"| ✔ | berth does what the API says, and the test checks it |\n" +
	"| Unimplemented | berth answers with this code, and the test requires it |\n" +
	"| refused | berth answers Unimplemented over this engine, with the field's name and this reason |\n\n" +
	"There is a column for each engine: see [docker.md](docker.md) for docker. `make e2e` runs the tests of all rows over it,\n" +
	"too. The reasons are those of the engine's own checks, and the column is made from them.\n\n" +
	"Some rows need an ability that a host may lack. The section [What a host must have](#what-a-host-must-have) has a probe\n" +
	"for each ability, and what berth does without it. `go run ./test/coverage -host` prints this page for the machine that it\n" +
	"runs on: a row that lacks an ability there shows the probe's output in place of ✔.\n"

// render writes the page. missing is the output of failed probes, by the name of the ability. The
// committed page has none.
func render(tables []table, tests testSources, missing map[string]string) string {
	var out strings.Builder
	out.WriteString(head)
	for _, t := range tables {
		fmt.Fprintf(&out, "\n## %s\n\n| row | covers | native | docker | the host needs | test |\n|---|---|---|---|---|---|\n", t.title)
		for _, r := range t.rows {
			covers := make([]string, 0, len(r.covers))
			for _, c := range r.covers {
				covers = append(covers, "`"+c+"`")
			}
			fmt.Fprintf(&out, "| %s | %s | %s | %s | %s | [%s](../test/integration/%s) |\n",
				r.name, strings.Join(covers, ", "), verdict(r, missing), t.dockerVerdict(r), strings.Join(r.needs, ", "), r.test, tests[r.test].file)
		}
	}
	out.WriteString("\n## What a host must have\n\nEach command succeeds if the host has the ability.\n")
	for _, a := range abilities() {
		fmt.Fprintf(&out, "\n### %s\n\n%s\n\n    %s\n\nIf the ability is missing, the command prints %s.\n\n%s\n", a.name, a.decides, a.probe, a.prints, a.then)
	}
	return out.String()
}

// verdict is how berth handles a row.
func verdict(r row, missing map[string]string) string {
	words := "✔"
	if r.later {
		words = "Unimplemented"
	}
	var lacks []string
	for _, need := range r.needs {
		if printed, ok := missing[need]; ok {
			lacks = append(lacks, fmt.Sprintf("no %s: `%s`", need, strings.ReplaceAll(printed, "|", `\|`)))
		}
	}
	if len(lacks) > 0 {
		words = strings.Join(lacks, "; ")
	}
	if r.note != "" {
		words += "<br>" + r.note
	}
	return words
}
