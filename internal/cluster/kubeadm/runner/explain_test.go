package runner

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestLastFaults: a message that repeats a hundred times does not hide another one.
func TestLastFaults(t *testing.T) {
	const why = `[ 12.5] dev containerd[228]: time="2026-11-22T09:24:48Z" level=error msg="StartContainer failed" error="jq: command not found"`
	lines := []string{"[ 10.1] dev kubelet[311]: I1122 09:24:40.1 311 server.go:1] started", why}
	for i := range 100 {
		lines = append(lines, fmt.Sprintf(`[ 13.%d] dev kubelet[311]: E1122 09:25:15.%d 311 kubelet.go:3516] "Unable to register mirror pod" node="dev"`, i, i))
	}
	lines = append(lines, `[ 14.0] dev berth[99]: time=2026-11-22T09:25:16Z level=INFO msg="all is well"`)
	got := lastFaults(strings.Join(lines, "\n"))
	if want := []string{why, lines[101]}; !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := lastFaults("a\nb\n"); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("without a complaint: %q", got)
	}
	if got := lastFaults(strings.Repeat("ü", 1000)); len([]rune(got[0])) != 401 || !strings.HasSuffix(got[0], "ü…") {
		t.Errorf("a long line: %q", got)
	}
	if got := lastFaults(""); len(got) != 0 {
		t.Errorf("of nothing: %q", got)
	}
}
