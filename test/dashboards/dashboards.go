// Package dashboards has queries of public dashboards and alerts for other runtimes, and decides
// whether a scrape of berth has data for them.
package dashboards

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

//go:embed queries.yaml
var queries []byte

// Query is one query of a dashboard or an alert.
type Query struct {
	// Source is where the query is from.
	Source string
	// Expr is the query. Variables of Grafana are replaced by values.
	Expr string
	// Absent is why berth has no data for it; empty if it has.
	Absent string
	// Host is why it depends on the host whether there is data; empty if it does not.
	Host string
	// CRI is set for a query of metrics that the kubelet gets by ListPodSandboxMetrics.
	CRI bool
}

// Queries returns all queries.
func Queries() ([]Query, error) {
	var sources []struct {
		Source  string
		CRI     bool `yaml:"cri"`
		Queries []struct{ Expr, Absent, Host string }
	}
	if err := yaml.Unmarshal(queries, &sources); err != nil {
		return nil, fmt.Errorf("queries.yaml: %w", err)
	}
	var all []Query
	for _, source := range sources {
		for _, query := range source.Queries {
			all = append(all, Query{Source: source.Source, Expr: strings.TrimSpace(query.Expr), Absent: query.Absent, Host: query.Host, CRI: source.CRI})
		}
	}
	return all, nil
}

// Selector selects series: a name, and matchers of labels.
type Selector struct {
	Name     string
	Matchers []Matcher
}

// Matcher is a condition on the value of a label.
type Matcher struct{ Label, Operator, Value string }

var (
	// text is a string in a query.
	text = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	// aside is a string, which stays, or else what selects no series: the labels of a grouping or a join, a range, or an
	// offset.
	aside = regexp.MustCompile(text.String() + `|\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)|\[[^\]]*\]|\boffset\s+\w+`)
	// selector is a name that is not a function, with its matchers.
	selector = regexp.MustCompile(`([a-zA-Z_:][\w:]*)\s*(\{(?:[^}"]|"(?:[^"\\]|\\.)*")*\})?\s*(\(?)`)
	matcher  = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"`)
)

// Selectors returns the selectors of a query. It knows the part of PromQL that the queries use.
func Selectors(expr string) []Selector {
	expr = aside.ReplaceAllStringFunc(expr, func(found string) string {
		if found[0] == '"' {
			return found
		}
		return " "
	})
	var found []Selector
	for {
		at := selector.FindStringSubmatchIndex(expr)
		if at == nil {
			return found
		}
		// A string that is no value of a matcher is the argument of a function.
		if quoted := text.FindStringIndex(expr); quoted != nil && quoted[0] < at[0] {
			expr = expr[quoted[1]:]
			continue
		}
		name, matchers, call := expr[at[2]:at[3]], "", at[6] != at[7]
		if at[4] >= 0 {
			matchers = expr[at[4]:at[5]]
		}
		number := at[0] > 0 && strings.ContainsAny(expr[at[0]-1:at[0]], "0123456789.") // 1e3
		expr = expr[at[1]:]
		if call || number || slices.Contains([]string{"and", "or", "unless", "bool", "by", "on", "group_left", "group_right"}, name) {
			continue
		}
		s := Selector{Name: name}
		for _, m := range matcher.FindAllStringSubmatch(matchers, -1) {
			s.Matchers = append(s.Matchers, Matcher{m[1], m[2], m[3]})
		}
		found = append(found, s)
	}
}

// ofTarget reports whether a label is one that a scrape adds: its value is not berth's.
func ofTarget(label string) bool {
	return slices.Contains([]string{"job", "instance", "node", "service", "endpoint", "cluster", "metrics_path"}, label)
}

// Selects reports whether the selector takes a series, which is written as in a scrape:
// NAME{LABEL="VALUE",...}. Labels of the target match always.
func (s Selector) Selects(series string) bool {
	name, rest, _ := strings.Cut(series, "{")
	if name != s.Name {
		return false
	}
	labels := map[string]string{}
	for _, found := range matcher.FindAllStringSubmatch(rest, -1) {
		labels[found[1]] = found[3]
	}
	return !slices.ContainsFunc(s.Matchers, func(m Matcher) bool {
		return !ofTarget(m.Label) && !m.matches(labels[m.Label])
	})
}

func (m Matcher) matches(value string) bool {
	switch m.Operator {
	case "=":
		return value == m.Value
	case "!=":
		return value != m.Value
	}
	matched, err := regexp.MatchString("^(?:"+m.Value+")$", value)
	return err == nil && matched == (m.Operator == "=~")
}

// grouping is the list of labels of an aggregation or a join.
var grouping = regexp.MustCompile(`\b(?:by|on)\s*\(([^)]*)\)`)

// Groups returns the labels by which a query groups or joins, except those of the target.
func Groups(expr string) []string {
	var labels []string
	for _, found := range grouping.FindAllStringSubmatch(expr, -1) {
		for _, label := range strings.Split(found[1], ",") {
			if label = strings.TrimSpace(label); label != "" && !ofTarget(label) && !slices.Contains(labels, label) {
				labels = append(labels, label)
			}
		}
	}
	return labels
}

// Missing returns what a query lacks in a scrape: selectors that take no series, and labels for
// grouping that no series of its selectors has. A scrape is a list of series.
func Missing(expr string, series []string) []string {
	var missing, taken []string
	for _, s := range Selectors(expr) {
		if strings.HasPrefix(s.Name, "kube_") || strings.HasPrefix(s.Name, "node_") {
			continue // of another program, which a query may join
		}
		before := len(taken)
		for _, one := range series {
			if s.Selects(one) {
				taken = append(taken, one)
			}
		}
		if len(taken) == before {
			missing = append(missing, fmt.Sprintf("%s%v", s.Name, s.Matchers))
		}
	}
	for _, label := range Groups(expr) {
		if !slices.ContainsFunc(taken, func(one string) bool {
			return strings.Contains(one, "{"+label+`="`) || strings.Contains(one, ","+label+`="`)
		}) {
			missing = append(missing, "label "+label)
		}
	}
	return missing
}
