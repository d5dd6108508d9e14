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

// FuzzParse: whatever a file says, it is refused as its author's fault, or it becomes
// requests that can be written down, whose files lie below the pod's directory.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("no test data: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(podHead + "  containers: [{name: a, image: x, ports: [{containerPort: 1, hostPort: 2}], command: [$(A), $$]}]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := Parse(data)
		if err != nil {
			blames(t, err)
			return
		}
		facts := &Facts{Dir: "/pods/u", LogDir: "/logs/u", PodIP: "10.88.0.5", HostIP: "192.0.2.1", NodeName: "host"}
		out := []any{b.Sandbox(facts), b.KeeperFields()}
		volumes, err := b.Volumes(facts.Dir)
		if err != nil {
			blames(t, err)
			return
		}
		for _, v := range volumes {
			for name := range v.Files {
				if !filepath.IsLocal(name) || strings.ContainsRune(name, 0) {
					t.Errorf("a volume has the file %q", name)
				}
			}
		}
		for _, list := range [][]corev1.Container{b.Pod.Spec.InitContainers, b.Pod.Spec.Containers} {
			for i := range list {
				config, err := b.Container(&list[i], 2, facts)
				if err != nil {
					blames(t, err)
					return
				}
				out = append(out, config)
			}
		}
		if _, err := json.Marshal(append(out, volumes)); err != nil {
			t.Errorf("the requests cannot be written: %v", err)
		}
	})
}

func blames(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, errs.Invalid) && !errors.Is(err, errs.NotFound) {
		t.Errorf("%v blames nobody", err)
	}
}
