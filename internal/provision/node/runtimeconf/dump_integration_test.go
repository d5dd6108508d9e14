//go:build integration

package runtimeconf

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/require"
	"github.com/pelletier/go-toml/v2"
)

// TestContainerdReadsWhatWeWrite passes each configuration to the installed containerd. Every key
// must be in the effective configuration that it prints.
func TestContainerdReadsWhatWeWrite(t *testing.T) {
	containerd := require.Binary(t, "containerd")
	out, err := exec.CommandContext(t.Context(), containerd, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(out))
	version, err := nodefile.ParseVersion(fields[2])
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range models() {
		t.Run(name, func(t *testing.T) {
			text, err := Containerd(of(m, version))
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "config.toml")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), containerd, "--config", path, "config", "dump")
			var warnings strings.Builder
			cmd.Stderr = &warnings
			dump, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: %s\n%s", err, warnings.String(), text)
			}
			if warnings.Len() > 0 {
				t.Errorf("containerd %v says: %s", version, warnings.String())
			}
			var ours, theirs map[string]any
			if err := toml.Unmarshal([]byte(text), &ours); err != nil {
				t.Fatal(err)
			}
			if err := toml.Unmarshal(dump, &theirs); err != nil {
				t.Fatal(err)
			}
			delete(ours, "imports") // printed as the files that it found
			contains(t, "", ours, theirs)
		})
	}
}

// contains reports each leaf of want that is not in got.
func contains(t *testing.T, path string, want, got map[string]any) {
	for key, value := range want {
		at := path + "/" + key
		table, isTable := value.(map[string]any)
		other, isOther := got[key].(map[string]any)
		switch {
		case isTable && isOther:
			contains(t, at, table, other)
		case isTable:
			t.Errorf("%s: %v, want a table", at, got[key])
		default:
			a, _ := toml.Marshal(map[string]any{"v": value})
			b, _ := toml.Marshal(map[string]any{"v": got[key]})
			if string(a) != string(b) {
				t.Errorf("%s: %s, want %s", at, b, a)
			}
		}
	}
}
