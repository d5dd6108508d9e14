package nodeimage

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// TestTools: crictl and ctr are links to berth that work in the image, or they are the given
// program. This also holds for a root file system that was built before.
func TestTools(t *testing.T) {
	b := &builder{root: t.TempDir()}
	bin := filepath.Join(b.root, "usr/local/bin")
	given := filepath.Join(t.TempDir(), "real")
	if err := errors.Join(os.MkdirAll(bin, 0o755), os.WriteFile(given, []byte("the real one"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ program, crictl string }{{"", "berth"}, {given, ""}, {"", "berth"}} {
		b.Crictl = step.program
		if err := b.tools(); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{"crictl": step.crictl, "ctr": "berth"} {
			if want == "" {
				continue
			}
			if target, err := os.Readlink(filepath.Join(bin, name)); err != nil || target != want {
				t.Errorf("with --crictl %q, %s leads to %q: %v", step.program, name, target, err)
			}
		}
		if step.crictl != "" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(bin, "crictl"))
		info, statErr := os.Lstat(filepath.Join(bin, "crictl"))
		if err := errors.Join(err, statErr); err != nil || string(text) != "the real one" || info.Mode() != 0o755 {
			t.Errorf("crictl is %q, %v: %v", text, info, err)
		}
	}
}

// TestVersionFiles: scripts read the version from the same file as in kind's image. It has no
// newline.
func TestVersionFiles(t *testing.T) {
	b := &builder{root: t.TempDir(), version: "v1.36.3"}
	if err := b.versionFiles(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"kind/version": "v1.36.3", "usr/share/berth/kubernetes-version": "v1.36.3\n"} {
		if text, err := os.ReadFile(filepath.Join(b.root, name)); err != nil || string(text) != want {
			t.Errorf("/%s has %q: %v", name, text, err)
		}
	}
}

// TestPackages: the image has the programs that scripts for kind's nodes call.
func TestPackages(t *testing.T) {
	for _, name := range []string{"curl", "jq", "iproute2", "procps"} {
		if !slices.Contains(Packages(), name) {
			t.Errorf("nodes have no %s", name)
		}
	}
}

// TestNoCrictl: a missing program is an error before anything is created.
func TestNoCrictl(t *testing.T) {
	b := &builder{Options: Options{Image: "x:1", Kubernetes: t.TempDir(), Crictl: "/nosuch/crictl"}}
	if err := b.check(); !errors.Is(err, errs.NotFound) {
		t.Errorf("no fault: %v", err)
	}
}
