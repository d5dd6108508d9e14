package podyaml

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthrun/berth/internal/errs"
)

// FuzzParse: any file is either refused, with an error that blames its author, or becomes requests
// that can be encoded and whose files are below the pod's directory.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	more, moreErr := filepath.Glob("testdata/documented/*.yaml")
	if err := errors.Join(err, moreErr); err != nil || len(files) == 0 || len(more) == 0 {
		f.Fatalf("no test data: %v", err)
	}
	for _, file := range append(files, more...) {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(podHead + "  containers: [{name: a, image: x, ports: [{containerPort: 1, hostPort: 2}], command: [$(A), $$]}]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Parse(data)
		if err != nil {
			blames(t, err)
			return
		}
		if len(m.Workloads) == 0 {
			t.Error("a file without workloads is taken")
		}
		for _, b := range m.Pods() {
			translatesWhole(t, b)
		}
		for _, s := range m.Services {
			for _, name := range s.Names() {
				if strings.ContainsAny(name, " \t\n\x00") {
					t.Errorf("a Service has the name %q", name)
				}
			}
		}
	})
}

// translatesWhole checks that the requests can be encoded and that paths stay below their
// directories.
func translatesWhole(t *testing.T, b *Bundle) {
	facts := testFacts()
	out := []any{b.Sandbox(facts), b.ForegroundFields()}
	if hosts := b.Hosts(facts, nil); strings.ContainsRune(hosts, 0) {
		t.Errorf("the hosts file is %q", hosts)
	}
	b.Credentials()
	volumes, err := b.Volumes(facts)
	if err != nil {
		blames(t, err)
		return
	}
	for _, v := range volumes {
		if v.Claim && b.claims == nil && !strings.HasPrefix(v.Path, "/claims/") {
			t.Errorf("a claim lies in %s", v.Path)
		}
		for name := range v.Files {
			if !filepath.IsLocal(name) || strings.ContainsRune(name, 0) {
				t.Errorf("a volume has the file %q", name)
			}
		}
	}
	for _, list := range [][]corev1.Container{b.Pod.Spec.InitContainers, b.Pod.Spec.Containers} {
		for i := range list {
			made, err := b.Container(&list[i], 2, facts)
			if err != nil {
				blames(t, err)
				return
			}
			for _, sub := range made.SubPaths {
				if !filepath.IsLocal(sub.Path) || !strings.HasPrefix(sub.Target, "/pods/u/subpaths/") {
					t.Errorf("a sub path is %+v", sub)
				}
			}
			out = append(out, made)
		}
	}
	if _, err := json.Marshal(append(out, volumes)); err != nil {
		t.Errorf("the requests cannot be written: %v", err)
	}
}

func blames(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, errs.Invalid) && !errors.Is(err, errs.NotFound) {
		t.Errorf("%v blames nobody", err)
	}
}
