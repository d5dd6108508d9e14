package cdi

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
)

// FuzzSpecs: for any spec file on the node, its devices are injected into a spec that can be
// encoded, or refused with the name of the field.
func FuzzSpecs(f *testing.F) {
	f.Add([]byte(spec), false)
	f.Add([]byte("cdiVersion: 1.0.0\nkind: example.com/toy\nannotations: {a: b}\ndevices:\n- name: null\n  containerEdits:\n"+
		"    additionalGids: [0, 5]\n    intelRdt: {closID: x}\n    deviceNodes: [{path: /dev/null, permissions: rwm, fileMode: 438, uid: 1}]\n"), true)
	f.Add([]byte(`{"cdiVersion":"0.3.0","kind":"example.com/toy","devices":[null,{"name":"null","containerEdits":{"hooks":[null],"mounts":[null],"deviceNodes":[null]}}]}`), false)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte, isYAML bool) {
		file := filepath.Join(dir, "toy.json")
		if isYAML {
			file = filepath.Join(dir, "toy.yaml")
		}
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(file)
		devices, err := Read([]string{dir})
		if err != nil {
			t.Fatalf("one file keeps all from being read: %v", err)
		}
		names := append(devices.cache.ListDevices(), "example.com/toy=null")
		for _, name := range names {
			into := &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}}
			if err := devices.Inject(into, []string{name}); err != nil {
				if !errors.Is(err, errs.Invalid) {
					t.Errorf("%v blames nobody", err)
				}
				continue
			}
			if _, err := json.Marshal(into); err != nil {
				t.Errorf("the spec cannot be written: %v", err)
			}
		}
	})
}
