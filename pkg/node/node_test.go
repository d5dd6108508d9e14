package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/pkg/kinds"
	"github.com/berthrun/berth/pkg/node"
)

// A program of an image builder applies a node file to the root directory of an image.
func Example() {
	file, err := os.ReadFile("node.yaml")
	if err != nil {
		fmt.Println(err)
		return
	}
	o := node.Options{Root: "/build/root", Berth: "/usr/local/bin/berth"}
	plan, err := node.MakePlan(context.Background(), file, o)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, step := range plan.Steps {
		fmt.Println(step.Task, step.Changes)
	}
	if _, err := node.Apply(context.Background(), file, o); err != nil {
		fmt.Println(err)
	}
}

func ExampleValidate() {
	file := "apiVersion: berth.run/v1alpha1\nkind: Node\nruntime: {name: rkt}\n"
	fmt.Println(errors.Is(node.Validate("node.yaml", []byte(file)), kinds.Invalid))
	// Output: true
}

const file = `apiVersion: berth.run/v1alpha1
kind: Node
runtime: {name: berth}
packages: {base: false}
network: {mode: builtin}
kernel:
  sysctls: {net.ipv4.ip_forward: "1"}
`

// TestApplyToARoot: a plan changes nothing; an apply does what the plan says, and reports it; then there is nothing
// left to do.
func TestApplyToARoot(t *testing.T) {
	require.Root(t)
	root, programs := t.TempDir(), t.TempDir()
	for name, content := range map[string]string{
		filepath.Join(root, "etc", "os-release"):                  "ID=debian\nVERSION_ID=\"12\"\nVERSION_CODENAME=bookworm\n",
		filepath.Join(root, "usr", "lib", "systemd", "systemd"):   "",
		filepath.Join(root, "usr", "local", "bin", "placeholder"): "",
		filepath.Join(programs, "berth"):                          "#!/bin/sh\n",
		filepath.Join(programs, "berth-supervisor"):               "#!/bin/sh\n",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var tasks []string
	o := node.Options{Root: root, Berth: filepath.Join(programs, "berth"), Progress: func(task string, _ time.Duration, err error) {
		if err != nil {
			t.Errorf("%s: %v", task, err)
		}
		tasks = append(tasks, task)
	}}
	plan, err := node.MakePlan(t.Context(), []byte(file), o)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Empty() || !json.Valid(plan.JSON) || len(tasks) > 0 {
		t.Fatalf("%+v; progress %q", plan, tasks)
	}
	done, err := node.Apply(t.Context(), []byte(file), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range plan.Steps {
		if !slices.Contains(done.Changed, step.Task) || len(step.Changes) == 0 {
			t.Errorf("the step %+v is not among the changes %q", step, done.Changed)
		}
	}
	if done.Number != 1 || len(tasks) == 0 {
		t.Errorf("%+v; progress %q", done, tasks)
	}
	if again, err := node.MakePlan(t.Context(), []byte(file), o); err != nil || !again.Empty() {
		t.Errorf("a second plan: %+v, %v", again, err)
	}
}

func TestValidateNamesEachFault(t *testing.T) {
	err := node.Validate("my.yaml", []byte("apiVersion: berth.run/v1alpha1\nkind: Node\nruntime: {name: rkt}\nkernel: {swap: maybe}\n"))
	if !errors.Is(err, kinds.Invalid) || !strings.Contains(err.Error(), "my.yaml:3:") || !strings.Contains(err.Error(), "my.yaml:4:") {
		t.Errorf("%v", err)
	}
}
