package config

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/manifest"
)

// TestSampleIsADescription: the sample describes the cluster that berth creates without a file.
func TestSampleIsADescription(t *testing.T) {
	got, err := Load("sample", []byte(Sample()), Options{})
	if err != nil {
		t.Fatalf("%v\n%s", err, Sample())
	}
	want, err := Default(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestSampleShowsEveryField: with its commented fields enabled, the sample has no unknown field and
// no value of a wrong type.
func TestSampleShowsEveryField(t *testing.T) {
	var lines []string
	for line := range strings.Lines(Sample()) {
		body := strings.TrimLeft(line, " ")
		if rest, ok := strings.CutPrefix(body, "# "); ok && isField(rest) {
			line = line[:len(line)-len(body)] + rest
		}
		lines = append(lines, line)
	}
	text := strings.Join(lines, "")
	if err := manifest.Read("sample", []byte(text), defaults()).Err(); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}

// isField reports whether a line is a field and not a sentence.
func isField(text string) bool {
	name, _, found := strings.Cut(text, ":")
	return strings.TrimSpace(text) == "-" || found && !strings.ContainsAny(name, " .") && name[0] >= 'a' && name[0] <= 'z'
}

// TestSchemaNamesWhatTheReaderTakes: the schema and the reader derive the same fields from the
// structs.
func TestSchemaNamesWhatTheReaderTakes(t *testing.T) {
	var schema struct {
		Required   []string
		Properties map[string]struct {
			Properties map[string]struct {
				Enum    []string
				Default any
			}
			Items struct{ Properties map[string]any }
		}
	}
	if err := json.Unmarshal(Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"apiVersion", "kind"}, schema.Required); diff != "" {
		t.Error(diff)
	}
	family := schema.Properties["networking"].Properties["ipFamily"]
	if diff := cmp.Diff([]string{"ipv4", "ipv6", "dual"}, family.Enum); diff != "" || family.Default != "ipv4" {
		t.Errorf("%s; default %v", diff, family.Default)
	}
	for _, field := range []string{"role", "extraMounts", "kubeadmConfigPatchesJSON6902", "registries"} {
		if schema.Properties["pools"].Items.Properties[field] == nil {
			t.Errorf("pools have no %s", field)
		}
	}
}
