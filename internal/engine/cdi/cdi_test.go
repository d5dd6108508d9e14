package cdi

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
)

const spec = `{"cdiVersion": "0.6.0", "kind": "example.com/toy", "containerEdits": {"env": ["TOYS=1"]}, "devices": [
 {"name": "null", "containerEdits": {"deviceNodes": [{"path": "/dev/toy", "hostPath": "/dev/null"}],
  "mounts": [{"hostPath": "/srv", "containerPath": "/toys", "options": ["ro", "bind"]}],
  "hooks": [{"hookName": "createContainer", "path": "/bin/true"}]}}]}`

func read(t *testing.T, files map[string]string) *Devices {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d, err := Read([]string{filepath.Join(dir, "absent"), dir})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestInject(t *testing.T) {
	d := read(t, map[string]string{"toy.json": spec})
	got := &specs.Spec{Process: &specs.Process{Env: []string{"A=b"}}, Linux: &specs.Linux{}}
	if err := d.Inject(got, []string{"example.com/toy=null"}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.Process.Env, []string{"A=b", "TOYS=1"}) || len(got.Mounts) != 1 || len(got.Hooks.CreateContainer) != 1 {
		t.Errorf("env %v, mounts %v, hooks %+v", got.Process.Env, got.Mounts, got.Hooks)
	}
	if len(got.Linux.Devices) != 1 || got.Linux.Devices[0].Major != 1 || got.Linux.Devices[0].Minor != 3 || len(got.Linux.Resources.Devices) != 1 {
		t.Errorf("devices %+v, rules %+v", got.Linux.Devices, got.Linux.Resources)
	}
}

func TestInjectRefused(t *testing.T) {
	d := read(t, map[string]string{"toy.json": spec, "broken.json": "{", "bad.yaml": "kind: nope", "null.json": strings.Replace(spec, `"mounts": [`, `"mounts": [null, `, 1)})
	err := d.Inject(&specs.Spec{}, []string{"example.com/toy=null", "example.com/toy=gone"})
	if !errors.Is(err, errs.Invalid) {
		t.Fatalf("error %v, want kind Invalid", err)
	}
	for _, word := range []string{"CDI_devices", "example.com/toy=gone", "broken.json", "bad.yaml", "null.json", "mounts[0] is null"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error does not say %q: %v", word, err)
		}
	}
}
