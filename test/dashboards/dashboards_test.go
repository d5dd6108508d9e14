package dashboards

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/berthrun/berth/internal/require"
)

func TestSelectors(t *testing.T) {
	for expr, want := range map[string][]string{
		`rate(a_total[5m])`: {"a_total[]"},
		`sum by (x, y) (rate(a_total{b="c",d!~"e{1}"}[5m])) / on (x) group_left kube_role{role="w"} > 0.05`: {"a_total[{b = c} {d !~ e{1}}]", "kube_role[{role = w}]"},
		`histogram_quantile(0.99, sum(rate(a_bucket{ l =~ "x.*" }[1h] offset 5m)) by (le)) and b == 1e3`:    {"a_bucket[{l =~ x.*}]", "b[]"},
		`sum(a{b=~"x[0-9]",c="by (d)"}) by (e)`:                                   {"a[{b =~ x[0-9]} {c = by (d)}]"},
		`topk(3, label_replace(a {}, "n", "$1", "m", "(.*)")) or bool_b unless c`: {"a[]", "bool_b[]", "c[]"},
	} {
		var got []string
		for _, s := range Selectors(expr) {
			got = append(got, fmt.Sprintf("%s%v", s.Name, s.Matchers))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", expr, diff)
		}
	}
}

func TestMissing(t *testing.T) {
	series := []string{`a_total{b="c",d="e"}`, `a_total{b="f"}`, "g", `h_bucket{le="1"}`}
	for expr, want := range map[string][]string{
		`sum by (d, node) (rate(a_total{b="c",job="x"}[5m])) * on (node) kube_role`: nil,
		`a_total{b!="c"}`:                     nil,
		`a_total{b=~"x|f"} + g`:               nil,
		`a_total{b=~"x|ff"} + g`:              {"a_total[{b =~ x|ff}]"},
		`a_total{b!~".*"}`:                    {"a_total[{b !~ .*}]"},
		`a_total{nothing=""}`:                 nil,
		`sum by (le, x) (rate(h_bucket[1m]))`: {"label x"},
		`absent_total > 0`:                    {"absent_total[]"},
	} {
		if diff := cmp.Diff(want, Missing(expr, series)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", expr, diff)
		}
	}
}

// TestQueriesAreValid: each query has its source and a selector, and Prometheus' own checker accepts it.
func TestQueriesAreValid(t *testing.T) {
	queries, err := Queries()
	if err != nil {
		t.Fatal(err)
	}
	type rule struct {
		Record, Expr string
	}
	var rules []rule
	seen := []string{}
	for i, query := range queries {
		if query.Source == "" || len(Selectors(query.Expr)) == 0 || slices.Contains(seen, query.Expr) {
			t.Errorf("%q of %q: has no source or no selector, or is there twice", query.Expr, query.Source)
		}
		seen = append(seen, query.Expr)
		rules = append(rules, rule{fmt.Sprintf("query:%d", i), query.Expr})
	}
	promtool := require.Binary(t, "promtool")
	data, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "queries", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "queries.yaml")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), promtool, "check", "rules", file).CombinedOutput(); err != nil { //nolint:gosec // a test's own file
		t.Errorf("promtool: %v\n%s", err, out)
	}
}
