package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/require"
)

// TestInstallLinks: make install-kind and install-crictl create links to an installed berth. They
// can run again, and never replace another program.
func TestInstallLinks(t *testing.T) {
	require.Binary(t, "make")
	dir := t.TempDir()
	bin := filepath.Join(dir, "opt/bin")
	install := func(name string) (string, error) {
		out, err := exec.CommandContext(t.Context(), "make", "-s", "-C", "../..", "install-"+name, "DESTDIR="+dir, "PREFIX=/opt").CombinedOutput()
		return string(out), err
	}
	if out, err := install("kind"); err == nil || !strings.Contains(out, "run make install first") {
		t.Errorf("without berth: %v\n%s", err, out)
	}
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "berth"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kind", "crictl"} {
		for range 2 {
			if out, err := install(name); err != nil {
				t.Errorf("%s: %v\n%s", name, err, out)
			}
		}
		link := filepath.Join(bin, name)
		if to, err := os.Readlink(link); err != nil || to != "berth" || called(link).name != name {
			t.Errorf("%s leads to %q: %v", name, to, err)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(link, []byte("the real one"), 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := install(name); err == nil || !strings.Contains(out, "another program") {
			t.Errorf("over the real %s: %v\n%s", name, err, out)
		}
		if text, err := os.ReadFile(link); err != nil || string(text) != "the real one" {
			t.Errorf("%s is %q: %v", name, text, err)
		}
	}
}
