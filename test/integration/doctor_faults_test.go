//go:build integration

package integration

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/criclient/criclienttest"
	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/network/builtin"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/faults"
	"github.com/berthrun/berth/test/harness"
)

// TestPlantedFaults: on each machine the program itself finds every fault that is planted there, explains it, and finds
// nothing else. --repair mends those whose findings say so, and changes nothing else. docs/doctor-faults.md is the list.
func TestPlantedFaults(t *testing.T) { plantFaults(t, false) }

func plantFaults(t *testing.T, slow bool) {
	require.Root(t)
	for _, m := range faults.Machines() {
		if m.Slow != slow {
			continue
		}
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			newFaultyMachine(t, m).compare(t)
		})
	}
}

// faultyMachine is what doctor has said on a machine.
type faultyMachine struct {
	faults.Machine
	in *strings.Replacer
	// well are the findings before the faults are planted; found, repaired and after those of an examination, of the repair
	// and of an examination after it.
	well, found, repaired, after []finding.Finding
	// examination and repair are differences of the machine that they have made, errors what doctor printed beside.
	examination, repair, errors string
}

func newFaultyMachine(t *testing.T, m faults.Machine) *faultyMachine {
	t.Helper()
	dir, err := os.MkdirTemp("", "faults-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	other, unready := "", filepath.Join(t.TempDir(), "unready")
	if m.Other != "" {
		other = criclienttest.Serve(t, &otherRuntime{name: m.Other, unready: unready}, m.Other+".sock")
	}
	instance := harness.InstanceOf(filepath.Join(dir, "state"))
	is := &faultyMachine{Machine: m, in: faults.In(dir, instance, builtin.TableName(instance), other, unready)}
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private", "bash", "-c", is.in.Replace(m.Script()))
	cmd.Env = append(os.Environ(), "T="+dir, "BIN="+harness.BinDir(t))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the machine cannot be made: %v\n%s", err, stderr.String())
	}
	texts := map[string][]byte{}
	for archive := tar.NewReader(bytes.NewReader(out)); ; {
		file, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			texts[file.Name], err = io.ReadAll(archive)
		}
		if err != nil {
			t.Fatalf("%v: %q\n%s", err, out, stderr.String())
		}
	}
	for name, into := range map[string]*[]finding.Finding{"well.json": &is.well, "found.json": &is.found, "repaired.json": &is.repaired, "after.json": &is.after} {
		if err := json.Unmarshal(texts[name], into); err != nil {
			t.Fatalf("%s: %v: %s\n%s", name, err, texts[name], texts["errors"])
		}
	}
	is.examination, is.repair, is.errors = string(texts["examination"]), string(texts["repair"]), string(texts["errors"])
	return is
}

// compare has a subtest for each fault.
func (m *faultyMachine) compare(t *testing.T) {
	explained := map[int]bool{}
	for _, fault := range m.Faults {
		t.Run(fault.Name, func(t *testing.T) {
			if slices.ContainsFunc(m.well, func(f finding.Finding) bool { return m.is(fault, f) }) {
				t.Fatal("it is found before it is planted")
			}
			i := slices.IndexFunc(m.found, func(f finding.Finding) bool { return m.is(fault, f) })
			if i < 0 {
				t.Fatalf("no finding %s of level %s about %s says %q and %q", fault.Check, fault.Level, m.in.Replace(fault.Object), m.in.Replace(fault.Evidence), m.in.Replace(fault.Fix))
			}
			explained[i] = true
			if f := m.found[i]; f.Docs != "docs/doctor.md#"+fault.Check || (f.Repair != "") != fault.Repaired {
				t.Errorf("%+v", f)
			}
			if m.Slow {
				return
			}
			if i := slices.IndexFunc(m.repaired, func(f finding.Finding) bool { return m.is(fault, f) }); i < 0 || m.repaired[i].Repaired != fault.Repaired || m.repaired[i].Unrepaired != "" {
				t.Errorf("with --repair: %+v", m.repaired[max(i, 0)])
			}
			if left := slices.ContainsFunc(m.after, func(f finding.Finding) bool { return m.is(fault, f) }); left == fault.Repaired {
				t.Errorf("found after the repair: %v", left)
			}
		})
	}
	for i, f := range m.found {
		planted := explained[i] || f.Level == finding.OK || slices.Contains(m.well, f) ||
			slices.ContainsFunc(m.Means, func(means string) bool { return m.in.Replace(means) == f.ID+" "+f.Object })
		if !planted {
			t.Errorf("nobody has planted %+v", f)
		}
	}
	if m.examination != "" || m.repair != "" {
		t.Errorf("the examination changes\n%s\nthe repair changes more than it says, or less:\n%s", m.examination, m.repair)
	}
	if t.Failed() {
		for _, f := range m.found {
			if f.Level != finding.OK {
				t.Logf("%s %s %s: %s => %s (%s)", f.Level, f.ID, f.Object, f.Evidence, f.Fix, f.Repair)
			}
		}
		t.Log(m.errors)
	}
}

// is reports whether a finding is that of a fault.
func (m *faultyMachine) is(fault faults.Fault, f finding.Finding) bool {
	return f.ID == fault.Check && f.Level == fault.Level && f.Object == m.in.Replace(fault.Object) &&
		strings.Contains(f.Evidence, m.in.Replace(fault.Evidence)) && strings.Contains(f.Fix, m.in.Replace(fault.Fix))
}

// otherRuntime answers what doctor asks. Its network is not ready while the file unready is there.
type otherRuntime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	name, unready string
}

func (o *otherRuntime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: o.name, RuntimeVersion: "1.2.3"}, nil
}

func (o *otherRuntime) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	_, ready := os.Stat(o.unready)
	return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true},
		{Type: runtimeapi.NetworkReady, Status: ready != nil, Reason: "Because", Message: "of the test"},
	}}}, nil
}

func (o *otherRuntime) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}}, nil
}
