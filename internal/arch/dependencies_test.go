package arch

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// TestEveryDependencyHasItsReason: docs/dependencies.md names each module that we
// require ourselves, and no other.
func TestEveryDependencyHasItsReason(t *testing.T) {
	page, err := os.ReadFile("../../docs/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json").Output()
	if err != nil {
		t.Fatalf("go mod edit: %v", err)
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	major := regexp.MustCompile(`/v[0-9]+$`)
	direct := map[string]bool{}
	for _, require := range mod.Require {
		if !require.Indirect {
			direct[major.ReplaceAllString(require.Path, "")] = true
		}
		if !require.Indirect && !strings.Contains(string(page), major.ReplaceAllString(require.Path, "")) {
			t.Errorf("docs/dependencies.md does not name %s: say what it is for, and why this one", require.Path)
		}
	}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) < 2 {
			continue
		}
		for _, module := range regexp.MustCompile(`[a-z0-9.-]+\.[a-z]+/[^\s,;]+`).FindAllString(cells[1], -1) {
			if module = strings.TrimSuffix(major.ReplaceAllString(module, ""), "/libcontainer"); !direct[module] {
				t.Errorf("docs/dependencies.md names %s, which nothing of ours imports", module)
			}
		}
	}
}
