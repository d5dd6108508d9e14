package systemd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// WithAssets puts the assets that containerd.sh has built into a directory, which the machine has
// as /opt/assets. It replaces @CONTAINERD@, @RUNC@ and @PLUGINS@ in a node file.
func WithAssets(t testing.TB, dir, text string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatalf("the assets are not made: run test/systemd/containerd.sh: %v", err)
	}
	for line := range strings.Lines(string(data)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		for prefix, word := range map[string]string{"containerd-": "@CONTAINERD@", "runc.": "@RUNC@", "cni-plugins-": "@PLUGINS@"} {
			if strings.HasPrefix(name, prefix) {
				text = strings.ReplaceAll(text, word, "{source: /opt/assets/"+name+", digest: \"sha256:"+sum+"\"}")
			}
		}
	}
	return text
}
