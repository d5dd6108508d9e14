package main

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/engine/docker/translate"
)

const integration = "../integration"

// TestPageIsAsCommitted: the API, the table and the tests agree, and `make generate`
// has been run since the last change of one of them.
func TestPageIsAsCommitted(t *testing.T) {
	tests, err := readTests(integration)
	if err != nil {
		t.Fatal(err)
	}
	if faults := check(allTables(), tests, abilities()); len(faults) > 0 {
		t.Fatal(errors.Join(faults...))
	}
	committed, err := os.ReadFile("../../docs/cri-coverage.md")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(committed), render(allTables(), tests, nil)); diff != "" {
		t.Errorf("docs/cri-coverage.md is not what `make generate` writes (-committed +written):\n%s", diff)
	}
}

func TestFaultsAreNamed(t *testing.T) {
	tests := testSources{"TestA": {file: "a_test.go", texts: map[string]bool{"one": true, "two": true, "skips": true}, skips: map[string]bool{"skips": true}}}
	good := func() []table {
		return []table{{what: "calls", refused: func(translate.Refusal) []string { return nil }, api: []string{"A", "B", "C"}, rows: []row{
			{name: "one", test: "TestA", covers: []string{"A"}, needs: []string{"iron"}},
			{name: "two", test: "TestA", covers: []string{"{B,C}"}},
		}}}
	}
	for name, c := range map[string]struct {
		change func(*table)
		want   string
	}{
		"nothing wrong":           {func(*table) {}, ""},
		"a call in no row":        {func(t *table) { t.api = append(t.api, "New") }, "calls: the API has New, which is in no row"},
		"a call that is gone":     {func(t *table) { t.api = t.api[:2] }, `calls: row "two" names C, which the API does not have`},
		"a call in two rows":      {func(t *table) { t.rows[0].covers = []string{"A", "B"} }, `calls: B is in two rows, "one" and "two"`},
		"a test that is gone":     {func(t *table) { t.rows[0].test = "TestB" }, `calls: row "one": there is no test TestB`},
		"a subtest that is gone":  {func(t *table) { t.rows[0].name = "three" }, `calls: row "three": TestA in a_test.go has no subtest of the row's name`},
		"a whole test":            {func(t *table) { t.rows[0].name, t.rows[0].whole = "three", true }, ""},
		"an ability that is none": {func(t *table) { t.rows[0].needs = []string{"gold"} }, `calls: row "one" needs "gold", which is no ability`},
		"a brace too few":         {func(t *table) { t.rows[1].covers = []string{"B", "C", "{A"} }, `calls: row "two": "{A": a brace is not closed`},
		"a test that skips":       {func(t *table) { t.rows[0].name = "skips" }, `calls: row "skips": its test is skipped over the engine docker, which refuses nothing of it`},
		"a row of nothing":        {func(t *table) { t.rows = append(t.rows, row{name: "one", test: "TestA"}) }, `calls: row "one": it covers nothing`},
	} {
		tables := good()
		c.change(&tables[0])
		var got []string
		for _, fault := range check(tables, tests, []ability{{name: "iron"}}) {
			got = append(got, fault.Error())
		}
		if c.want == "" && len(got) > 0 || c.want != "" && !slices.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestExpand(t *testing.T) {
	for pattern, want := range map[string]string{
		"a": "a", "a.{b,c}": "a.b a.c", "{,List}X": "X ListX", "a.{b,c.{d,e}}.f": "a.b.f a.c.d.f a.c.e.f", "{a,b}.{c,d}": "a.c a.d b.c b.d",
	} {
		got, err := expand(pattern)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %q, %v, want %q", pattern, got, err, want)
		}
	}
	for _, pattern := range []string{"{a", "a}", "a,b", "{a,{b}"} {
		if got, err := expand(pattern); err == nil {
			t.Errorf("%s: %q", pattern, got)
		}
	}
}

// TestDockerColumn: a row shows what the engine docker refuses, and no ✔ if that is all of it.
func TestDockerColumn(t *testing.T) {
	tables := allTables()
	containers := &tables[2]
	for fields, want := range map[string]string{
		"command": "✔",
		"linux.resources.hugepage_limits.{page_size,limit}":   "refused: limits of huge pages. The Docker engine's API has no field for it.",
		"{command,linux.resources.hugepage_limits.page_size}": "✔<br>refused: limits of huge pages. The Docker engine's API has no field for it.",
		"mounts.recursive_read_only":                          "✔<br>refused: recursive read-only mounts before API 1.44. The Docker engine's API has no field for it.",
	} {
		if got := containers.dockerVerdict(row{covers: []string{fields}}); got != want {
			t.Errorf("%s: %q, want %q", fields, got, want)
		}
	}
	for _, refusal := range translate.Refusals() {
		shown := slices.ContainsFunc(tables, func(t table) bool {
			return slices.ContainsFunc(t.rows, func(r row) bool { return strings.Contains(t.dockerVerdict(r), refusal.Request) })
		})
		if !shown {
			t.Errorf("no row shows that %s are refused", refusal.Request)
		}
	}
}

// TestTestsOverDocker: a test runs over the engine docker unless a reason says otherwise. A row's test
// may have none.
func TestTestsOverDocker(t *testing.T) {
	tables := []table{{what: "calls", rows: []row{{name: "one", test: "TestRow"}}}}
	found := testSources{"TestRow": {}, "TestOther": {}, "TestMachine": {}}
	for _, c := range []struct {
		without map[string]string
		want    []string
	}{
		{map[string]string{"TestMachine": "a reason"}, nil},
		{map[string]string{"TestGone": "a reason"}, []string{"there is no test TestGone, which does not run over the engine docker"}},
		{map[string]string{"TestRow": "a reason"}, []string{`calls "one": TestRow does not run over the engine docker: a reason`}},
	} {
		var got []string
		for _, fault := range checkWithoutDocker(c.without, tables, found) {
			got = append(got, fault.Error())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: %q, want %q", c.without, got, c.want)
		}
	}
	all, err := readTests("../integration")
	if err != nil {
		t.Fatal(err)
	}
	pattern := dockerTests(all)
	for _, tbl := range allTables() {
		for _, r := range tbl.rows {
			if !regexp.MustCompile(pattern).MatchString(r.test) {
				t.Errorf("%s of row %q is not in %s", r.test, r.name, pattern)
			}
		}
	}
}

// TestHostWithoutAbilities: a row shows the output of the probe that failed.
func TestHostWithoutAbilities(t *testing.T) {
	missing := probeAll([]ability{{name: "present", probe: "true"}, {name: "absent", probe: "echo 'a|b' >&2; exit 3"}})
	if diff := cmp.Diff(map[string]string{"absent": "a|b (exit status 3)"}, missing); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for want, r := range map[string]row{
		"✔":                                    {needs: []string{"present"}},
		"no absent: `a\\|b (exit status 3)`":   {needs: []string{"absent"}},
		"✔<br>a note":                          {note: "a note"},
		"Unimplemented<br>it comes later, too": {later: true, note: "it comes later, too"},
	} {
		if got := verdict(r, missing); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
