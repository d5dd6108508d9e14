package execstate

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/ownstart/finish"
)

// write writes a state as runc does: a new file takes the place of the old one.
func write(t *testing.T, root, id string, state *libcontainer.State) {
	t.Helper()
	data, err := json.Marshal(state)
	if err == nil {
		err = os.MkdirAll(filepath.Join(root, id), 0o700)
	}
	path := filepath.Join(root, id, "state.json")
	if err == nil {
		err = os.WriteFile(path+".new", data, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// ordinary is the state of a container that berth's child can enter.
func ordinary() *libcontainer.State {
	return &libcontainer.State{
		BaseState: libcontainer.BaseState{
			ID: "c", InitProcessPid: 7, InitProcessStartTime: 8,
			Config: configs.Config{
				Rootfs: "/r", Version: "1", Labels: []string{"bundle=/b"}, Hostname: "h", Devices: nil, Mounts: []*configs.Mount{{Destination: "/m"}},
				Namespaces:      configs.Namespaces{{Type: configs.NEWNS}, {Type: configs.NEWPID}, {Type: configs.NEWNET, Path: "/n"}, {Type: configs.NEWCGROUP}},
				AppArmorProfile: "profile", ProcessLabel: "label", OomScoreAdj: new(5), NoNewPrivileges: true, Umask: new(uint32(0o27)),
				Rlimits:      []configs.Rlimit{{Type: 6, Soft: 1, Hard: 2}},
				Capabilities: &configs.Capabilities{Bounding: []string{"CAP_CHOWN"}},
				Hooks:        configs.Hooks{},
			},
		},
		CgroupPaths: map[string]string{"freezer": "/f"},
	}
}

func TestStateHasWhatTheContainerDecides(t *testing.T) {
	root := t.TempDir()
	write(t, root, "c", ordinary())
	s, err := New(root).Get("c")
	if err != nil {
		t.Fatal(err)
	}
	want := &finish.Process{
		Umask: 0o27, Rlimits: []finish.Rlimit{{Kind: 6, Soft: 1, Hard: 2}}, Capabilities: &finish.Capabilities{Bounding: 1},
		NoNewPrivileges: true, AppArmor: "profile", SELinux: "label", OOMScoreAdj: new(5), Keyring: "_ses.c",
	}
	if !reflect.DeepEqual(s.Process, want) {
		t.Errorf("process %+v, want %+v", s.Process, want)
	}
	if s.Pid != 7 || s.StartTime != 8 || s.Cgroups["freezer"] != "/f" || s.Unfit != "" || s.Namespaces != unix.CLONE_NEWPID|unix.CLONE_NEWNET|unix.CLONE_NEWCGROUP {
		t.Errorf("state %+v", s)
	}
}

func TestStateIsReadAgainAfterAChange(t *testing.T) {
	root := t.TempDir()
	cache := New(root)
	if _, err := cache.Get("c"); !errors.Is(err, errs.NotFound) {
		t.Errorf("no state: %v", err)
	}
	state := ordinary()
	write(t, root, "c", state)
	first, err := cache.Get("c")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := cache.Get("c"); err != nil || again != first {
		t.Errorf("the same file was read twice: %v", err)
	}
	state.Config.OomScoreAdj = new(6)
	write(t, root, "c", state)
	if second, err := cache.Get("c"); err != nil || *second.Process.OOMScoreAdj != 6 {
		t.Errorf("after a change: %+v, %v", second, err)
	}
	if err := os.WriteFile(filepath.Join(root, "c/state.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := cache.Get("c"); err == nil {
		t.Error("a damaged state was read")
	}
	if err := os.RemoveAll(filepath.Join(root, "c")); err != nil {
		t.Fatal(err)
	}
	if _, err := cache.Get("c"); !errors.Is(err, errs.NotFound) || len(cache.known) != 0 {
		t.Errorf("after the removal: %v, %d known", err, len(cache.known))
	}
}

// TestUnhandledConfigurationIsNamed sets one field after the other: berth's child handles it, it does not
// matter to an exec, or it is a reason for libcontainer. A field that a later version adds is a reason.
func TestUnhandledConfigurationIsNamed(t *testing.T) {
	passes := strings.Fields(`Rootfs Umask Readonlyfs RootPropagation Mounts Devices NetDevices MountLabel Hostname Domainname
		Capabilities Networks Routes Cgroups AppArmorProfile ProcessLabel Rlimits OomScoreAdj MaskPaths ReadonlyPaths Sysctl Seccomp
		NoNewPrivileges Hooks Version Labels NoNewKeyring Namespaces UIDMappings GIDMappings`)
	known := map[string]bool{}
	for _, name := range passes {
		known[name] = true
	}
	fields := reflect.TypeFor[configs.Config]()
	for i := range fields.NumField() {
		config := ordinary().Config
		field := reflect.ValueOf(&config).Elem().Field(i)
		fill(field)
		name := fields.Field(i).Name
		if reason := unhandled(config); known[name] != (reason == "") || reason != "" && !strings.Contains(reason, name) {
			t.Errorf("%s: %q", name, reason)
		}
	}
	if _, unfit := namespaces(configs.Namespaces{{Type: configs.NEWNS}, {Type: configs.NEWTIME}}); !strings.Contains(unfit, string(configs.NEWTIME)) {
		t.Errorf("a time namespace: %q", unfit)
	}
	if _, unfit := namespaces(configs.Namespaces{{Type: configs.NEWPID}}); unfit == "" {
		t.Error("a container without a mount namespace of its own passes")
	}
}

// fill gives a field a value that is not empty.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.Zero(v.Type().Key()), reflect.Zero(v.Type().Elem()))
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int:
		v.SetInt(1)
	}
}
