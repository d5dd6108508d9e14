package allow

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// golden returns the specs that the daemon makes.
func golden(t *testing.T) map[string]*specs.Spec {
	t.Helper()
	files, err := filepath.Glob("../../../ocispec/testdata/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no specs: %v", err)
	}
	all := make(map[string]*specs.Spec)
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var spec specs.Spec
		if err := json.Unmarshal(data, &spec); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".json")] = &spec
	}
	return all
}

// TestOrdinarySpecsAreAllowed: of the specs that the daemon makes, only those with a volume take
// libcontainer whose ids are mapped in another way than those of the pod. A shim makes the sandbox of shim-sandbox.
func TestOrdinarySpecsAreAllowed(t *testing.T) {
	for name, spec := range golden(t) {
		ok, reason := Create(spec, Facts{})
		own := name != "shim-sandbox" && !slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool { return len(m.UIDMappings) > 0 })
		if ok != own {
			t.Errorf("%s: %v (%s), want %v", name, ok, reason, own)
		}
		if ok != (reason == "") {
			t.Errorf("%s: allowed %v with reason %q", name, ok, reason)
		}
	}
}

func TestHostDecides(t *testing.T) {
	spec := golden(t)["plain"]
	if ok, reason := Create(spec, Facts{Host: "the kernel is old"}); ok || reason != "the kernel is old" {
		t.Errorf("allowed %v (%q)", ok, reason)
	}
}

func TestReasonNamesTheField(t *testing.T) {
	for want, change := range map[string]func(*specs.Spec){
		"memory limit of 4194303 bytes": func(s *specs.Spec) {
			s.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64(4<<20 - 1))}}
		},
		"linux.intelRdt": func(s *specs.Spec) { s.Linux.IntelRdt = &specs.LinuxIntelRdt{} },
		"hooks.prestart": func(s *specs.Spec) {
			s.Hooks = &specs.Hooks{Prestart: []specs.Hook{{Path: "/x"}}} //nolint:staticcheck // older tools still use it
		},
		"hooks.createRuntime": func(s *specs.Spec) { s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/x"}}} },
		"hooks.createContainer": func(s *specs.Spec) {
			s.Hooks = &specs.Hooks{CreateContainer: []specs.Hook{{Path: "/x"}}, Poststop: []specs.Hook{{}}}
		},
		"hooks.startContainer": func(s *specs.Spec) { s.Hooks = &specs.Hooks{StartContainer: []specs.Hook{{Path: "/x"}}} },
		"process.scheduler":    func(s *specs.Spec) { s.Process.Scheduler = &specs.Scheduler{} },
		"linux.personality":    func(s *specs.Spec) { s.Linux.Personality = &specs.LinuxPersonality{} },
		"linux.mountLabel":     func(s *specs.Spec) { s.Linux.MountLabel = "x" },
		"mounts.uidMappings":   func(s *specs.Spec) { s.Mounts[0].UIDMappings = []specs.LinuxIDMapping{{Size: 1}} },
		"making a user namespace": func(s *specs.Spec) {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: "user"})
		},
		"linux.uidMappings":   func(s *specs.Spec) { s.Linux.UIDMappings = []specs.LinuxIDMapping{{Size: 1}} },
		`type "nfs"`:          func(s *specs.Spec) { s.Mounts[0].Type = "nfs" },
		`option "remount"`:    func(s *specs.Spec) { s.Mounts[0].Options = append(s.Mounts[0].Options, "remount") },
		"a mount namespace":   func(s *specs.Spec) { s.Linux.Namespaces = nil },
		"rootfsPropagation":   func(s *specs.Spec) { s.Linux.RootfsPropagation = "unbindable" },
		"process.user.userna": func(s *specs.Spec) { s.Process.User.Username = "x" },
	} {
		spec := golden(t)["plain"]
		change(spec)
		ok, reason := Create(spec, Facts{})
		if ok || !strings.Contains(reason, want) {
			t.Errorf("%s: allowed %v, reason %q", want, ok, reason)
		}
	}
}

// TestEveryFieldIsKnown: a field that a new version of the OCI spec adds is a reason, until somebody lists
// it here with the handled ones.
func TestEveryFieldIsKnown(t *testing.T) {
	handled := map[string]bool{}
	for _, name := range []string{"Version", "Annotations", "Hostname", "Domainname", "Root", "Process", "Mounts", "Linux"} {
		handled[name] = true
	}
	spec := reflect.TypeFor[specs.Spec]()
	for i := range spec.NumField() {
		field := spec.Field(i)
		if handled[field.Name] || field.Name == "Hooks" {
			continue
		}
		with := golden(t)["plain"]
		v := reflect.ValueOf(with).Elem().Field(i)
		v.Set(reflect.New(field.Type.Elem()))
		if ok, _ := Create(with, Facts{}); ok {
			t.Errorf("a spec with %s is allowed", field.Name)
		}
	}
}
