package metrics

import (
	"fmt"
	"strings"
)

// Reference renders the page docs/metrics.md.
func Reference() string {
	var b strings.Builder
	b.WriteString("# Metrics of `berth serve`\n\n" +
		"<!-- Made by `make generate` from internal/metrics. Do not edit. -->\n\n" +
		"With this page you can write queries, dashboards and alerts. `berth metrics` prints the metrics of a\n" +
		"running daemon; `metrics.listen` serves them to Prometheus. [running.md](running.md#prometheus) shows\n" +
		"how to set that up, and `examples/metrics` has a dashboard for Grafana and alert rules.\n\n" +
		"No label has the name of a pod, a container or an image. A label has at most 100 values; what\n" +
		"exceeds them counts as `other`. Counters begin with the daemon, those of the supervisor (creates and\n" +
		"logs) with the supervisor.\n\n" +
		"## Metrics of berth\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, f := range Families() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.Name, f.Type, quoted(f.Labels), f.Help)
	}
	b.WriteString("\nBeside these there are `go_*` and `process_*` of Go's client library, about the daemon, and\n" +
		"`" + supervisorPrefix + "_process_*`, the same about the supervisor (engine native).\n\n" +
		"## Names of other runtimes\n\n" +
		"`metrics.peers` names the runtimes whose metrics berth shows as well, made from its own. Dashboards and\n" +
		"alerts made for these runtimes then have data. `runtime` is always `berth`, and the\n" +
		"quantiles of CRI-O's summary are estimated from a histogram, since the start of the daemon.\n\n" +
		"What berth does not count is not there: containerd's throughput of pulls, CRI-O's metrics of single\n" +
		"layers and of containers by their names, and the durations of calls of the Docker Engine.\n\n" +
		"| peer | metric | from |\n|---|---|---|\n")
	for _, f := range peerFamilies() {
		fmt.Fprintf(&b, "| %s | `%s` | `%s` |\n", f.peer, f.name, f.from)
	}
	return b.String()
}

func quoted(names []string) string {
	var all []string
	for _, name := range names {
		all = append(all, "`"+name+"`")
	}
	return strings.Join(all, ", ")
}
