package podyaml

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/golden"
	corev1 "k8s.io/api/core/v1"
)

// TestGolden holds the whole translation of each file in testdata.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no test data: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			got := translate(t, file)
			golden.Check(t, strings.TrimSuffix(file, ".yaml")+".golden.json", string(got))
		})
	}
}

func translate(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	facts := &Facts{Dir: "/pods/u", LogDir: "/logs/u", PodIP: "10.88.0.5", HostIP: "192.0.2.1", NodeName: "host"}
	out := map[string]any{
		"handler": b.Handler,
		"sandbox": b.Sandbox(facts),
		"keeper":  b.KeeperFields(),
	}
	if out["volumes"], err = b.Volumes(facts.Dir); err != nil {
		t.Fatal(err)
	}
	for _, list := range [][]corev1.Container{b.Pod.Spec.InitContainers, b.Pod.Spec.Containers} {
		for i := range list {
			if out["container "+list[i].Name], err = b.Container(&list[i], 2, facts); err != nil {
				t.Fatal(err)
			}
		}
	}
	got, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(got, '\n')
}
