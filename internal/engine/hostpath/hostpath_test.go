package hostpath

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/probe"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestResolve(t *testing.T) {
	dir := t.TempDir()
	file, link, loose := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "loose")
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "real"), 0o755), os.WriteFile(file, nil, 0o600), os.Symlink("real", link), os.Symlink("nowhere", loose)); err != nil {
		t.Fatal(err)
	}
	real := filepath.Join(dir, "real")
	for from, want := range map[string]Place{
		link:                          {real, real},
		file:                          {file, file},
		filepath.Join(link, "a", "b"): {filepath.Join(real, "a", "b"), real},
		filepath.Join(dir, "a") + "/": {filepath.Join(dir, "a"), dir},
		"/":                           {"/", "/"},
	} {
		if got, err := Resolve(from); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", from, got, err, want)
		}
	}
	for _, from := range []string{filepath.Join(file, "below"), loose, filepath.Join(loose, "below"), filepath.Join(dir, string(make([]byte, 5000)))} {
		if got, err := Resolve(from); !errors.Is(err, errs.Invalid) {
			t.Errorf("%s: %+v, %v; want kind Invalid", from, got, err)
		}
	}
}

// TestMakeMissingSources: a directory that was created for a refused container is removed with it,
// unless another process uses it. Once the container exists the directory stays.
func TestMakeMissingSources(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	if err := os.Mkdir(there, 0o755); err != nil {
		t.Fatal(err)
	}
	made := Made{Probes: &probe.Pool{Timeout: time.Minute, Limit: 8}, Claims: &Claims{}, File: filepath.Join(dir, "made")}
	a, b := filepath.Join(there, "x", "a"), filepath.Join(there, "x", "b", "c")
	missing := []Missing{{"config.mounts[0].host_path", a}, {"config.mounts[1].host_path", b}}
	makeAll := func() {
		t.Helper()
		if err := made.Make(t.Context(), missing); err != nil {
			t.Fatal(err)
		}
		if !exists(a) || !exists(b) {
			t.Fatal("they were not made")
		}
	}
	remove := func() {
		t.Helper()
		if err := errors.Join(made.Remove(t.Context()), os.RemoveAll(made.File)); err != nil { // with the bundle
			t.Fatal(err)
		}
	}
	makeAll()
	remove()
	if exists(filepath.Join(there, "x")) || !exists(there) {
		t.Error("after a refusal: not all that was made is gone, or more")
	}
	makeAll()
	if err := os.WriteFile(filepath.Join(a, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	remove()
	if !exists(a) || exists(filepath.Join(there, "x", "b")) {
		t.Error("after a refusal: what is in use must stay, and nothing else")
	}
	makeAll()
	if err := made.Keep(); err != nil {
		t.Fatal(err)
	}
	remove()
	if !exists(b) {
		t.Error("of a container that stands: gone")
	}
	if err := made.Keep(); err != nil {
		t.Errorf("nothing was made: %v", err)
	}
}

// TestMakeRefusedSources: the error names the field.
func TestMakeRefusedSources(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	made := Made{Probes: &probe.Pool{Timeout: time.Minute, Limit: 8}, Claims: &Claims{}, File: filepath.Join(dir, "made")}
	err := made.Make(t.Context(), []Missing{{"config.mounts[3].host_path", filepath.Join(dir, "x", "y")}, {"config.mounts[4].host_path", filepath.Join(file, "below")}})
	if !errors.Is(err, errs.Invalid) || err.Error()[:len("config.mounts[4].host_path: ")] != "config.mounts[4].host_path: " {
		t.Errorf("%v, want kind Invalid and the field", err)
	}
	if err := made.Remove(t.Context()); err != nil || exists(filepath.Join(dir, "x")) {
		t.Errorf("the first one is left, %v", err)
	}
}

// TestMadeForOneUsedByAnother: berth makes a directory for a container, another container mounts it, too, and the creation
// of the first one fails. The directory stays: in a removed directory, the other container could create no files.
func TestMadeForOneUsedByAnother(t *testing.T) {
	for name, use := range map[string]func(t *testing.T, other Made, source string){
		"found": func(t *testing.T, other Made, source string) {
			f := Finder{Probes: other.Probes, Claims: other.Claims}
			mounts := []*runtimeapi.Mount{{HostPath: source}}
			if _, missing, err := f.Find(t.Context(), mounts, ""); err != nil || len(missing) > 0 {
				t.Fatalf("%v, %v", missing, err)
			}
		},
		"missing for both": func(t *testing.T, other Made, source string) {
			if err := other.Make(t.Context(), []Missing{{"config.mounts[0].host_path", source}}); err != nil {
				t.Fatal(err)
			}
			if err := other.Keep(); err != nil {
				t.Fatal(err)
			}
		},
		"nobody": nil,
	} {
		t.Run(name, func(t *testing.T) {
			dir, claims, probes := t.TempDir(), &Claims{}, &probe.Pool{Timeout: time.Minute, Limit: 8}
			one, other := Made{probes, claims, filepath.Join(dir, "one")}, Made{probes, claims, filepath.Join(dir, "other")}
			above := filepath.Join(dir, "above")
			source, alone := filepath.Join(above, "source"), filepath.Join(above, "alone")
			missing := []Missing{{"config.mounts[0].host_path", source}, {"config.mounts[1].host_path", alone}}
			if err := one.Make(t.Context(), missing); err != nil {
				t.Fatal(err)
			}
			if use != nil {
				use(t, other, source)
			}
			if err := one.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
			if exists(source) != (use != nil) || exists(alone) {
				t.Errorf("after the failure the source is there: %v, and that of nobody else: %v", exists(source), exists(alone))
			}
			if len(claims.byDir)+len(claims.dirs) > 0 {
				t.Errorf("claims are left: %v", claims.byDir)
			}
		})
	}
}
