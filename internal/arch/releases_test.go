package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/version"
)

// TestReleasesAreInOrder: the list of releases has a version, a commit, a date and a theme in each
// line, and the newest is last: `make upgrade-matrix` and build/version.sh rely on that.
func TestReleasesAreInOrder(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "build", "releases.txt"))
	if err != nil {
		t.Fatal(err)
	}
	form := regexp.MustCompile(`^v(\d+\.\d+\.\d+) [0-9a-f]{40} (\d{4}-\d\d-\d\d) \S.*$`)
	last, day := version.MustParseSemantic("0.0.0"), time.Time{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "#") {
			continue
		}
		found := form.FindStringSubmatch(line)
		if found == nil {
			t.Errorf("build/releases.txt: %q is not VERSION COMMIT DATE THEME", line)
			continue
		}
		now, err := time.Parse(time.DateOnly, found[2])
		if v := version.MustParseSemantic(found[1]); err != nil || !last.LessThan(v) || now.Before(day) {
			t.Errorf("build/releases.txt: %s is not after %s of %s: %v", line, last, day.Format(time.DateOnly), err)
		} else {
			last, day = v, now
		}
	}
	if last.Major() == 0 && last.Minor() == 0 {
		t.Error("build/releases.txt has no release")
	}
}

// TestWorkflowsUseTargets: the steps of a workflow are targets of the Makefile, so that everybody can
// run them.
func TestWorkflowsUseTargets(t *testing.T) {
	root := filepath.Join("..", "..")
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, ".github", "workflows", "*.yml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no workflows: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		steps := regexp.MustCompile(`(?m)run:.*\bmake ([a-z0-9-]+)`).FindAllStringSubmatch(string(text), -1)
		if len(steps) == 0 {
			t.Errorf("%s runs no target", file)
		}
		for _, step := range steps {
			if !regexp.MustCompile(`(?m)^` + step[1] + `:`).Match(makefile) {
				t.Errorf("%s runs make %s, which is not a target", file, step[1])
			}
		}
	}
}
