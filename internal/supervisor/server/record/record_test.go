package record

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

func goodRecord() Container {
	return Container{
		Version: Version,
		ID:      "abc",
		BootID:  "boot",
		Stage:   Running,
		Cgroups: cgroup.Paths{"": "/sys/fs/cgroup/pod/abc"},
		Init:    &Process{Pid: 7, Start: 8},
		Pipes:   map[string]uint64{supervisor.StreamStdout: 9},
	}
}

func TestRecordRoundTrip(t *testing.T) {
	dir := t.TempDir()
	want := goodRecord()
	if err := WriteJSON(sysfile.Replace, filepath.Join(dir, Name), &want); err != nil {
		t.Fatal(err)
	}
	got, err := Read(dir, "abc")
	if err != nil || got.Stage != Running || *got.Init != *want.Init || got.Pipes[supervisor.StreamStdout] != 9 {
		t.Errorf("%+v %v", got, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left beside it: %v %v", entries, err)
	}
}

func TestUnusableRecords(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Container)
		kind   error
	}{
		"newer":           {func(r *Container) { r.Version = Version + 2 }, errs.Unsupported},
		"another's":       {func(r *Container) { r.ID = "xyz" }, errs.Invalid},
		"strange stage":   {func(r *Container) { r.Stage = "flying" }, errs.Invalid},
		"no process":      {func(r *Container) { r.Init = nil }, errs.Invalid},
		"no exit":         {func(r *Container) { r.Stage = Exited }, errs.Invalid},
		"no cgroup":       {func(r *Container) { r.Cgroups = nil }, errs.Invalid},
		"others' cgroup":  {func(r *Container) { r.Cgroups = cgroup.Paths{"": "/sys/fs/cgroup"} }, errs.Invalid},
		"one ahead reads": {func(r *Container) { r.Version = Version + 1 }, nil},
	} {
		dir := t.TempDir()
		r := goodRecord()
		tc.change(&r)
		if err := WriteJSON(sysfile.Replace, filepath.Join(dir, Name), &r); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(dir, "abc"); !errors.Is(err, tc.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Read(t.TempDir(), "abc"); !errors.Is(err, errs.NotFound) {
		t.Errorf("absent: %v", err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, Name), []byte(`{"version":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir, "abc"); !errors.Is(err, errs.Invalid) {
		t.Errorf("cut short: %v", err)
	}
}

func TestWriteThatFailsKeepsTheOldRecord(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, Name)
	r := goodRecord()
	if err := WriteJSON(sysfile.Replace, path, &r); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, sysfile.TempPrefix+Name), 0o700); err != nil { // this blocks the next write
		t.Fatal(err)
	}
	r.Stage = Exited
	if err := WriteJSON(sysfile.Replace, path, &r); err == nil || !strings.Contains(err.Error(), "cannot write record") {
		t.Errorf("%v", err)
	}
	if got, err := Read(dir, "abc"); err != nil || got.Stage != Running {
		t.Errorf("%+v %v", got, err)
	}
}
