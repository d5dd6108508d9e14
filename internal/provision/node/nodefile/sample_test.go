package nodefile

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/registries"
)

// TestSampleIsADescription: the sample, long or short, reads back as the description from which it
// was written.
func TestSampleIsADescription(t *testing.T) {
	want := Default()
	want.Runtime.Name = "containerd"
	want.Runtime.Version = "2.4.2"
	want.Registries = []registries.Registry{{Host: "docker.io", Mirrors: []registries.Mirror{{URL: "https://mirror.example", Capabilities: []string{"pull"}}}}}
	want.Kernel.Sysctls = map[string]string{"vm.max_map_count": "262144"}
	want.Kubelet.Enabled, want.Kubelet.Config = true, map[string]any{"maxPods": 250}
	for _, text := range []string{Sample(want), Short(want)} {
		got, err := Load("sample", []byte(text))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if diff := cmp.Diff(want, got, cmp.Transformer("empty", func(s []string) []string { return append([]string{}, s...) })); diff != "" {
			t.Errorf("%s\n%s", diff, text)
		}
	}
}

// TestSampleShowsEveryField: with all its comments enabled, the sample has no unknown field and no
// wrong type. It may have conflicts.
func TestSampleShowsEveryField(t *testing.T) {
	var lines []string
	for line := range strings.Lines(Sample(Default())) {
		body := strings.TrimLeft(line, " ")
		if rest, ok := strings.CutPrefix(body, "# "); ok && isField(rest) {
			line = line[:len(line)-len(body)] + rest
		}
		lines = append(lines, line)
	}
	text := strings.Join(lines, "")
	_, err := Load("sample", []byte(text))
	if err == nil {
		t.Fatal("conflicting options were taken")
	}
	for _, word := range []string{"no such field", "want a", "is there twice", "did not find"} {
		for line := range strings.Lines(err.Error()) {
			if strings.Contains(line, word) && !strings.Contains(line, "is missing") {
				t.Errorf("%s", line)
			}
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

// isField reports whether a line is a field and not a sentence.
func isField(text string) bool {
	name, _, found := strings.Cut(text, ":")
	return strings.TrimSpace(text) == "-" || found && !strings.ContainsAny(name, " .") && name[0] >= 'a' && name[0] <= 'z'
}

// TestSampleOfEachRuntimeIsRight: the output of `berth node init` has no fault.
func TestSampleOfEachRuntimeIsRight(t *testing.T) {
	for _, runtime := range []string{"berth", "containerd", "crio", "docker"} {
		n := Default()
		n.Runtime.Name = runtime
		for _, text := range []string{Sample(n), Short(n)} {
			if _, err := Load(runtime, []byte(text)); err != nil {
				t.Errorf("%v\n%s", err, text)
			}
		}
	}
}

// TestSchemaNamesWhatTheReaderTakes: the schema and the reader derive the same fields from the
// struct.
func TestSchemaNamesWhatTheReaderTakes(t *testing.T) {
	var schema struct {
		Required   []string
		Properties map[string]struct {
			Type                 string
			AdditionalProperties any
			Properties           map[string]struct {
				Enum    []string
				Default any
			}
		}
	}
	if err := json.Unmarshal(Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"apiVersion", "kind", "runtime"}, schema.Required); diff != "" {
		t.Error(diff)
	}
	runtime := schema.Properties["runtime"]
	if diff := cmp.Diff([]string{"berth", "containerd", "crio", "docker"}, runtime.Properties["name"].Enum); diff != "" {
		t.Error(diff)
	}
	if runtime.AdditionalProperties != false || runtime.Type != "object" {
		t.Errorf("runtime takes unknown fields: %+v", runtime)
	}
	if runtime.Properties["cgroupDriver"].Default != "auto" {
		t.Errorf("cgroupDriver has default %v", runtime.Properties["cgroupDriver"].Default)
	}
}
