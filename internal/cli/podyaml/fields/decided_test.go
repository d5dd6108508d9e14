package fields

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berthrun/berth/internal/cli/podyaml/document"
)

// field is one of an API type: its path as the lists spell it, and its name in Go.
type field struct{ path, name string }

// types are the API types that a file may have documents of.
func types() map[string]any {
	return map[string]any{
		"v1 Pod": corev1.Pod{}, "apps/v1 Deployment": appsv1.Deployment{}, "apps/v1 ReplicaSet": appsv1.ReplicaSet{},
		"v1 ReplicationController": corev1.ReplicationController{}, "apps/v1 DaemonSet": appsv1.DaemonSet{},
		"apps/v1 StatefulSet": appsv1.StatefulSet{}, "batch/v1 Job": batchv1.Job{}, "v1 Service": corev1.Service{},
		"v1 ConfigMap": corev1.ConfigMap{}, "v1 Secret": corev1.Secret{},
		"v1 PersistentVolumeClaim": corev1.PersistentVolumeClaim{}, "v1 PersistentVolume": corev1.PersistentVolume{},
	}
}

// decider returns the decision that the lists contain for a path.
type decider struct {
	lists *rules
	// skip are paths that another part of the walk covers.
	skip []string
}

func newDecider(kind string) *decider {
	l, skip := kindLists()[kind], []string{"metadata", "status", "spec.template"}
	if kind == "v1 Pod" {
		l, skip = podLists(), []string{"status", "spec.initContainers"}
	}
	return &decider{lists: parseLists(l, document.Place{}, &document.Notes{}), skip: skip}
}

// decide returns "" if the fields below the path have decisions of their own.
func (d *decider) decide(path string) string {
	switch {
	case d.lists.honoured[path]:
		return "honoured"
	case d.lists.ignored[path], d.lists.serverDefaults[path] != nil:
		return "ignored"
	case d.lists.inner[path]:
		return ""
	}
	return "refused"
}

// walk visits the fields of a type: each field that is refused or ignored as a whole, and each leaf
// of the other fields.
func (d *decider) walk(prefix string, t reflect.Type, above string, visit func(f field, decision string)) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" && (f.Anonymous || options == "inline") {
			d.walk(prefix, f.Type, above, visit)
			continue
		}
		path, inner := prefix+name, f.Type
		if slices.Contains(d.skip, path) {
			continue
		}
		decision := above
		if decision == "" {
			decision = d.decide(path)
		}
		suffix := "."
		for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
			if inner.Kind() == reflect.Slice {
				suffix = "[]."
			}
			inner = inner.Elem()
		}
		if isLeaf(inner) || decision == "refused" || decision == "ignored" {
			visit(field{path, f.Name}, decision)
			continue
		}
		d.walk(path+suffix, inner, decision, visit)
	}
}

func isLeaf(t reflect.Type) bool {
	return t.Kind() != reflect.Struct || slices.Contains([]reflect.Type{
		reflect.TypeFor[resource.Quantity](), reflect.TypeFor[intstr.IntOrString](), reflect.TypeFor[metav1.Time](),
		reflect.TypeFor[metav1.FieldsV1](), reflect.TypeFor[metav1.LabelSelector](),
	}, t)
}

// decided returns the lines of testdata/fields.txt: each field of the API's types with its
// decision.
func decided(t *testing.T) map[string]bool {
	t.Helper()
	data, err := os.ReadFile("testdata/fields.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			lines[line] = true
		}
	}
	return lines
}

// TestEveryFieldOfTheAPIIsDecidedOn: an upgrade of k8s.io/api may add a field. The test fails until
// the lists have a decision for it, even if a field above it has one.
func TestEveryFieldOfTheAPIIsDecidedOn(t *testing.T) {
	left := decided(t)
	for kind, zero := range types() {
		d := newDecider(kind)
		d.walk("", reflect.TypeOf(zero), "", func(f field, decision string) {
			line := kind + " " + f.path + " " + decision
			if !left[line] {
				t.Errorf("nobody has decided on this: %s\n\tIf the code does so, add the line to testdata/fields.txt, else change the lists.", line)
			}
			delete(left, line)
		})
	}
	for line := range left {
		t.Errorf("testdata/fields.txt has a line that is not so: %s", line)
	}
}

// TestANewFieldIsNoticed: the walk finds a field that the API does not have yet, also below a field
// that is honoured as a whole.
func TestANewFieldIsNoticed(t *testing.T) {
	type spec struct {
		corev1.PodSpec
		Newest  string `json:"newest"`
		Volumes []struct {
			HostPath struct {
				Newest []*int32 `json:"newest"`
			} `json:"hostPath"`
		} `json:"volumes"`
	}
	found := map[string]string{}
	newDecider("v1 Pod").walk("spec.", reflect.TypeFor[spec](), "", func(f field, decision string) { found[f.path] = decision })
	for path, want := range map[string]string{"spec.newest": "refused", "spec.volumes[].hostPath.newest": "honoured"} {
		if found[path] != want {
			t.Errorf("%s is %q, want %q", path, found[path], want)
		}
	}
}

// TestHonouredFieldsAreRead: some code reads each field that is honoured.
func TestHonouredFieldsAreRead(t *testing.T) {
	read := selectors(t, "..", "../../podrun")
	for kind, zero := range types() {
		newDecider(kind).walk("", reflect.TypeOf(zero), "", func(f field, decision string) {
			// Kinds are written as "GROUP/VERSION KIND". References always have version v1.
			if decision == "honoured" && !read[f.name] && f.name != "APIVersion" {
				t.Errorf("%s %s is honoured, and no code reads %s", kind, f.path, f.name)
			}
		})
	}
}

// selectors returns the names after a dot in the code of some directories and all directories below
// them.
func selectors(t *testing.T, dirs ...string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, dir := range dirs {
		before := len(names)
		err := filepath.WalkDir(dir, func(file string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
				return err
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					names[s.Sel.Name] = true
				}
				return true
			})
			return nil
		})
		if err != nil || len(names) == before {
			t.Fatalf("%s has no code: %v", dir, err)
		}
	}
	return names
}
