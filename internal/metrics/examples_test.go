package metrics

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/berthrun/berth/internal/require"
)

// expressions returns the queries of the dashboard and of the alert rules, by where they are.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	var dashboard struct {
		Panels []struct {
			Type, Title string
			Targets     []struct{ Expr string }
		}
	}
	data, err := os.ReadFile("../../examples/metrics/dashboard.json")
	if err == nil {
		err = json.Unmarshal(data, &dashboard)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, panel := range dashboard.Panels {
		if panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("panel %q has no query", panel.Title)
		}
		for i, target := range panel.Targets {
			all["panel "+panel.Title+" "+string(rune('A'+i))] = target.Expr
		}
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	data, err = os.ReadFile("../../examples/metrics/alerts.yaml")
	if err == nil {
		err = yaml.Unmarshal(data, &rules)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			all["alert "+rule.Alert] = rule.Expr
		}
	}
	if len(all) < 40 {
		t.Fatalf("only %d queries were found", len(all))
	}
	return all
}

// seriesOf returns the names of series that a scrape has, with their labels.
func seriesOf(text string) map[string][]string {
	all := map[string][]string{}
	label := regexp.MustCompile(`(\w+)="`)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		name, rest, _ := strings.Cut(strings.TrimSpace(line), "{")
		name, _, _ = strings.Cut(name, " ")
		for _, found := range label.FindAllStringSubmatch(rest, -1) {
			if !slices.Contains(all[name], found[1]) {
				all[name] = append(all[name], found[1])
			}
		}
		all[name] = append(all[name], "instance")
	}
	return all
}

// TestExamplesNameWhatIsThere: the dashboard and the alerts use metrics and labels that berth has.
func TestExamplesNameWhatIsThere(t *testing.T) {
	m := whole()
	m.SetSupervisorPid(os.Getpid())
	series := seriesOf(textOf(t, m))
	selector := regexp.MustCompile(`\b((?:berth|go|process)_\w+)(?:\{([^}]*)\})?`)
	matcher := regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)`)
	used := map[string]bool{}
	for where, expr := range expressions(t) {
		if strings.Count(expr, "(") != strings.Count(expr, ")") || strings.Count(expr, "{") != strings.Count(expr, "}") {
			t.Errorf("%s: %s: brackets do not match", where, expr)
		}
		found := selector.FindAllStringSubmatch(expr, -1)
		if len(found) == 0 {
			t.Errorf("%s: %q has no metric", where, expr)
		}
		for _, use := range found {
			labels, ok := series[use[1]]
			if !ok {
				t.Errorf("%s: metric %s does not exist", where, use[1])
			}
			used[use[1]] = true
			for _, label := range matcher.FindAllStringSubmatch(use[2], -1) {
				if !slices.Contains(labels, label[1]) {
					t.Errorf("%s: %s has no label %s, it has %v", where, use[1], label[1], labels)
				}
			}
		}
	}
	shown := []string{"berth_metrics_source_duration_seconds"} // of the scrape, not of the node
	for _, f := range Families() {
		if strings.HasPrefix(f.Name, "berth_engine_call") || slices.Contains(shown, f.Name) {
			continue
		}
		if !used[f.Name] && !used[f.Name+"_bucket"] && !used[f.Name+"_sum"] && f.Name != PoolSize && f.Name != PoolReady && f.Name != ImagesBytes && f.Name != LogWrittenLines && f.Name != SupervisorUp {
			t.Errorf("neither the dashboard nor an alert uses %s", f.Name)
		}
	}
}

// TestExamplesAreValid: Prometheus' own checker accepts the alert rules and every query of the dashboard.
func TestExamplesAreValid(t *testing.T) {
	promtool := require.Binary(t, "promtool")
	type rule struct {
		Record, Expr string
	}
	variables := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*")
	var rules []rule
	for _, expr := range expressions(t) {
		rules = append(rules, rule{fmt.Sprintf("query:%d", len(rules)), variables.Replace(expr)})
	}
	data, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	queries := filepath.Join(t.TempDir(), "queries.yaml")
	if err := os.WriteFile(queries, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"../../examples/metrics/alerts.yaml", queries} {
		if out, err := exec.CommandContext(t.Context(), promtool, "check", "rules", file).CombinedOutput(); err != nil { //nolint:gosec // a test's own files
			t.Errorf("promtool: %v\n%s", err, out)
		}
	}
}
