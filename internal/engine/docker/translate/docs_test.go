package translate

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestDocsListTheRefusals: the table in docs/docker.md is the list of refusals.
func TestDocsListTheRefusals(t *testing.T) {
	const file, head = "../../../../docs/docker.md", "| request | works from API | why it is refused |\n|---|---|---|\n"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, after, found := strings.Cut(string(data), head)
	if !found {
		t.Fatalf("%s has no table of refusals", file)
	}
	table, rest, _ := strings.Cut(after, "\n\n")
	var want strings.Builder
	for _, r := range Refusals() {
		fmt.Fprintf(&want, "| %s | %s | %s |\n", r.Request, cmp.Or(r.From, "never"), r.Reason)
	}
	if table+"\n" == want.String() {
		return
	}
	if os.Getenv("BERTH_GOLDEN") != "update" {
		t.Fatalf("the table in %s is not the list of refusals (BERTH_GOLDEN=update go test rewrites it):\n%s\nwant\n%s", file, table, &want)
	}
	if err := os.WriteFile(file, []byte(before+head+want.String()+"\n"+strings.TrimPrefix(rest, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
}
