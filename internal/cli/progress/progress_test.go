package progress

import (
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/berthapi"
)

func TestLine(t *testing.T) {
	for want, p := range map[string]berthapi.Progress{
		"a:1  resolving ":        {Stage: "resolving"},
		"a:1  fetching    1.5MB": {Stage: "fetching", Done: 1_500_000},
		"a:1  fetching    [>                       ]  0B/2kB":  {Stage: "fetching", Total: 2000},
		"a:1  fetching    [============>           ]  1kB/2kB": {Stage: "fetching", Done: 1000, Total: 2000},
		"a:1  unpacking   [========================]  2kB/2kB": {Stage: "unpacking", Done: 3000, Total: 2000},
	} {
		got := line("a:1", p)
		if p.Done > p.Total && p.Total > 0 {
			want = strings.Replace(want, "2kB/2kB", "3kB/2kB", 1)
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestWithoutATerminalEachStageIsALine(t *testing.T) {
	var out strings.Builder
	b := New(&out, "a:1")
	for done := range int64(5) {
		b.Show(berthapi.Progress{Stage: "fetching", Done: done})
	}
	b.Show(berthapi.Progress{Stage: "unpacking"})
	b.Clear()
	if want := "a:1: fetching\na:1: unpacking\n"; out.String() != want {
		t.Errorf("got %q", out.String())
	}
}
