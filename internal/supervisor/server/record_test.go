package server

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

func goodRecord() record {
	return record{
		Version: recordVersion,
		ID:      "abc",
		BootID:  "boot",
		Stage:   running,
		Cgroups: cgroup.Paths{"": "/sys/fs/cgroup/pod/abc"},
		Init:    &process{Pid: 7, Start: 8},
		Pipes:   map[string]uint64{supervisor.StreamStdout: 9},
	}
}

func TestRecordComesBack(t *testing.T) {
	dir := t.TempDir()
	want := goodRecord()
	if err := writeJSON(sysfile.Replace, filepath.Join(dir, recordName), &want); err != nil {
		t.Fatal(err)
	}
	got, err := readRecord(dir, "abc")
	if err != nil || got.Stage != running || *got.Init != *want.Init || got.Pipes[supervisor.StreamStdout] != 9 {
		t.Errorf("%+v %v", got, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left beside it: %v %v", entries, err)
	}
}

func TestUnusableRecords(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*record)
		kind   error
	}{
		"newer":           {func(r *record) { r.Version = recordVersion + 2 }, errs.Unsupported},
		"another's":       {func(r *record) { r.ID = "xyz" }, errs.Invalid},
		"strange stage":   {func(r *record) { r.Stage = "flying" }, errs.Invalid},
		"no process":      {func(r *record) { r.Init = nil }, errs.Invalid},
		"no exit":         {func(r *record) { r.Stage = exited }, errs.Invalid},
		"no cgroup":       {func(r *record) { r.Cgroups = nil }, errs.Invalid},
		"others' cgroup":  {func(r *record) { r.Cgroups = cgroup.Paths{"": "/sys/fs/cgroup"} }, errs.Invalid},
		"one ahead reads": {func(r *record) { r.Version = recordVersion + 1 }, nil},
	} {
		dir := t.TempDir()
		r := goodRecord()
		tc.change(&r)
		if err := writeJSON(sysfile.Replace, filepath.Join(dir, recordName), &r); err != nil {
			t.Fatal(err)
		}
		if _, err := readRecord(dir, "abc"); !errors.Is(err, tc.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := readRecord(t.TempDir(), "abc"); !errors.Is(err, errs.NotFound) {
		t.Errorf("absent: %v", err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, recordName), []byte(`{"version":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readRecord(dir, "abc"); !errors.Is(err, errs.Invalid) {
		t.Errorf("cut short: %v", err)
	}
}

func TestWriteThatFailsKeepsTheOldRecord(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, recordName)
	r := goodRecord()
	if err := writeJSON(sysfile.Replace, path, &r); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, sysfile.TempPrefix+recordName), 0o700); err != nil { // in the way of the next one
		t.Fatal(err)
	}
	r.Stage = exited
	if err := writeJSON(sysfile.Replace, path, &r); err == nil || !strings.Contains(err.Error(), "cannot write record") {
		t.Errorf("%v", err)
	}
	if got, err := readRecord(dir, "abc"); err != nil || got.Stage != running {
		t.Errorf("%+v %v", got, err)
	}
}

func TestPeerOfAnExitHearsEachOnce(t *testing.T) {
	var e exits
	var got []string
	stop := e.listen(func(exit supervisor.Exit) { got = append(got, exit.ID) })
	e.publish(supervisor.Exit{ID: "a"})
	e.publish(supervisor.Exit{ID: "b"})
	stop()
	e.publish(supervisor.Exit{ID: "c"})
	if strings.Join(got, "") != "ab" {
		t.Errorf("heard %v", got)
	}
}
