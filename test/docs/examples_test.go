package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestExamples: each example is read by what its comment says that reads it, and the comment's
// commands are right.
func TestExamples(t *testing.T) {
	found := map[string]int{}
	err := filepath.WalkDir(filepath.Join(root, "examples"), func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(file) != ".yaml" || strings.Contains(file, "examples/metrics/") {
			return err // internal/metrics tests its own
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		found[filepath.Dir(name)]++
		if err := checkExample(t, filepath.ToSlash(name), string(data)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir, n := range map[string]int{"examples": 4, "examples/clusters": 4, "examples/nodes": 5, "examples/ci": 1} {
		if found[dir] < n {
			t.Errorf("%s has %d examples, want %d at least", dir, found[dir], n)
		}
	}
}

// commentCommand is a command in the comment of an example.
var commentCommand = regexp.MustCompile(`(?m)^#   (\S.*)$`)

func checkExample(t *testing.T, name, text string) error {
	t.Helper()
	if strings.HasPrefix(name, "examples/ci/") {
		return checkWorkflow(text)
	}
	var script strings.Builder
	for _, found := range commentCommand.FindAllStringSubmatch(text, -1) {
		script.WriteString(found[1] + "\n")
	}
	if !strings.Contains(script.String(), name) {
		t.Errorf("%s: the comment has no command with the file's name", name)
	}
	if _, err := checkScript(script.String()); err != nil {
		return err
	}
	if strings.Contains(script.String(), "kubectl apply -f "+name) {
		return checkYAML(text, []string{"kubernetes"})
	}
	return checkYAML(text, nil)
}

// checkWorkflow reads the steps of a workflow, and the commands in them.
func checkWorkflow(text string) error {
	var workflow struct {
		Jobs map[string]struct {
			Steps []struct{ Run string }
		}
	}
	if err := yaml.Unmarshal([]byte(text), &workflow); err != nil {
		return err
	}
	var script strings.Builder
	for _, job := range workflow.Jobs {
		for _, step := range job.Steps {
			script.WriteString(step.Run + "\n")
		}
	}
	lines, err := checkScript(script.String())
	if err == nil && lines < 5 {
		return fmt.Errorf("found %d commands of berth: does the test read the steps?", lines)
	}
	return err
}
