package podrun

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/cli/podyaml"
	"github.com/berthrun/berth/internal/cli/podyaml/network"
)

// newGroupScene creates a keeper for all pods of a file.
func newGroupScene(t *testing.T, yaml string, f *fakeRuntime) (*scene, *podyaml.Manifest) {
	t.Helper()
	m, err := podyaml.Parse([]byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	return newScene(t, "  containers: [{name: unused, image: \"x:1\"}]\n", f), m
}

// runGroup runs all pods of the file to their end, or until the test ends it.
func (s *scene) runGroup(m *podyaml.Manifest) {
	ctx, cancel := context.WithCancel(s.t.Context())
	s.cancel = cancel
	go func() {
		defer close(s.done)
		defer cancel()
		s.code, s.err = RunAll(ctx, s.opts, m)
	}()
}

// wantOrder fails the test unless the calls came in this order.
func (s *scene) wantOrder(order ...string) {
	s.t.Helper()
	calls, last := s.runtime.noted(), -1
	for _, call := range order {
		at := slices.Index(calls, call)
		if at < 0 || at < last {
			s.t.Fatalf("%q is not there, or before what it comes after, in %q", call, calls)
		}
		last = at
	}
}

const threeOrdered = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 3
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: a, image: "x:1"}]}
`

func TestStatefulSetStartsInOrderAndStopsLastFirst(t *testing.T) {
	s, m := newGroupScene(t, threeOrdered, &fakeRuntime{programs: map[string]program{"a": serves(0)}})
	s.runGroup(m)
	s.until("readiness", func() bool { return strings.Contains(s.said.String(), "pod default/db-2 is ready") })
	s.cancel()
	s.wait()
	s.wantOrder("start db-0/a-0", "run sandbox db-1", "start db-1/a-0", "run sandbox db-2", "start db-2/a-0",
		"stop db-2/a-0 in 30", "stop sandbox db-2", "stop db-1/a-0 in 30", "stop sandbox db-1", "stop db-0/a-0 in 30", "stop sandbox db-0")
}

// TestSecondInterruptKillsAllOfAStatefulSet: the second interrupt kills all pods. The command does
// not wait for a pod that does not exit.
func TestSecondInterruptKillsAllOfAStatefulSet(t *testing.T) {
	s, m := newGroupScene(t, threeOrdered, &fakeRuntime{programs: map[string]program{"a": func(*fakeContainer) int32 {
		<-t.Context().Done()
		return 0
	}}})
	s.runGroup(m)
	s.until("start", s.called("start db-2/a-0"))
	s.cancel()
	s.until("stop", s.called("stop db-2/a-0 in 30"))
	if s.called("stop db-1/a-0 in 30")() {
		t.Error("db-1 is stopped before db-2 has ended")
	}
	close(s.kill)
	s.wait()
	for _, call := range []string{"stop db-0/a-0 in 0", "stop db-1/a-0 in 0", "stop db-2/a-0 in 0"} {
		if !s.called(call)() {
			t.Errorf("no %q in %q", call, s.runtime.noted())
		}
	}
}

func TestMinReadySecondsDelayTheNextPod(t *testing.T) {
	yaml := strings.Replace(threeOrdered, "replicas: 3", "replicas: 2\n  minReadySeconds: 1", 1)
	var started [2]atomic.Int64
	s, m := newGroupScene(t, yaml, &fakeRuntime{programs: map[string]program{"a": func(c *fakeContainer) int32 {
		index := 0
		if strings.Contains(c.logPath, "db-1") {
			index = 1
		}
		started[index].Store(time.Now().UnixNano())
		<-c.stop
		return 0
	}}})
	s.runGroup(m)
	s.until("start of both", func() bool { return started[1].Load() != 0 })
	if pause := time.Duration(started[1].Load() - started[0].Load()); pause < time.Second {
		t.Errorf("db-1 starts %s after db-0", pause)
	}
	s.cancel()
	s.wait()
}

const failingJob = `
apiVersion: batch/v1
kind: Job
metadata: {name: j}
spec:
  backoffLimit: 2
  template: {spec: {restartPolicy: Never, containers: [{name: a, image: "x:1"}]}}
`

func TestJobIsRetriedUpToItsLimit(t *testing.T) {
	for _, c := range []struct {
		succeedsAt, runs int32
		code             int
	}{{2, 2, 0}, {3, 3, 0}, {9, 3, 4}} {
		var runs atomic.Int32
		s, m := newGroupScene(t, failingJob, &fakeRuntime{programs: map[string]program{"a": func(*fakeContainer) int32 {
			if runs.Add(1) >= c.succeedsAt {
				return 0
			}
			return 4
		}}})
		s.runGroup(m)
		s.wait()
		if s.code != c.code || runs.Load() != c.runs {
			t.Errorf("%+v: it ran %d times, code %d", c, runs.Load(), s.code)
		}
		if n := strings.Count(s.said.String(), "of Job j failed with exit code 4, another in"); n != int(c.runs)-1 {
			t.Errorf("%+v: said %q", c, s.said.String())
		}
	}
}

// TestJobRestartsContainersUpToItsLimit: with OnFailure each restart of a container counts.
func TestJobRestartsContainersUpToItsLimit(t *testing.T) {
	var runs atomic.Int32
	yaml := strings.NewReplacer("Never", "OnFailure", "backoffLimit: 2", "backoffLimit: 1").Replace(failingJob)
	s, m := newGroupScene(t, yaml, &fakeRuntime{programs: map[string]program{"a": func(*fakeContainer) int32 {
		runs.Add(1)
		return 3
	}}})
	s.runGroup(m)
	s.wait()
	if s.code != 3 || runs.Load() != 2 {
		t.Errorf("it ran %d times, code %d", runs.Load(), s.code)
	}
	if want := "a ended (exit code 3): its Job's backoffLimit allows no further restart"; !strings.Contains(s.said.String(), want) {
		t.Errorf("said %q, want %q", s.said.String(), want)
	}
}

const twoPods = `
apiVersion: v1
kind: Service
metadata: {name: both}
spec: {selector: {app: w}}
---
apiVersion: v1
kind: Pod
metadata: {name: one, labels: {app: w}, uid: u-1}
spec: {restartPolicy: Never, containers: [{name: a, image: "x:1"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: two, labels: {app: w}, uid: u-2}
spec: {restartPolicy: Never, containers: [{name: b, image: "x:1"}]}
`

func TestStartAllLeavesAllPodsRunning(t *testing.T) {
	s, m := newGroupScene(t, twoPods, &fakeRuntime{programs: map[string]program{"a": serves(0), "b": serves(0)}})
	ids, err := StartAll(t.Context(), s.opts, m)
	if err != nil || !slices.Equal(ids, []string{"sandbox one", "sandbox two"}) {
		t.Fatalf("got %q, %v", ids, err)
	}
	s.wantOrder("start one/a-0", "run sandbox two", "start two/b-0")
	if s.called("stop sandbox one")() {
		t.Errorf("calls %q", s.runtime.noted())
	}
	// The hosts file of the first pod has both names. The keeper writes it again when the second
	// pod starts.
	hosts, err := os.ReadFile(podyaml.HostsFile(filepath.Join(s.volumes, "u-1")))
	if err != nil || strings.Count(string(hosts), "both.default.svc") != 2*strings.Count("both.default.svc both.default.svc.cluster.local", "both.default.svc") {
		t.Errorf("hosts of the first:\n%s%v", hosts, err)
	}
}

func TestStartAllThatFailsLeavesNoPod(t *testing.T) {
	s, m := newGroupScene(t, twoPods, &fakeRuntime{programs: map[string]program{"a": serves(0)}})
	if _, err := StartAll(t.Context(), s.opts, m); err == nil || !strings.Contains(err.Error(), "no program for b") {
		t.Errorf("got %v", err)
	}
	for _, call := range []string{"remove sandbox one", "remove sandbox two"} {
		if !s.called(call)() {
			t.Errorf("no %q in %q", call, s.runtime.noted())
		}
	}
	for _, dir := range []string{s.volumes, s.logs} {
		if entries, _ := os.ReadDir(dir); len(entries) != 0 {
			t.Errorf("%s still has %v", dir, entries)
		}
	}
}

// TestHostsFilesLoseAPodThatEnds: a Service's name does not lead to an address that nobody has.
func TestHostsFilesLoseAPodThatEnds(t *testing.T) {
	end := make(chan struct{})
	s, m := newGroupScene(t, twoPods, &fakeRuntime{programs: map[string]program{
		"a": func(*fakeContainer) int32 { <-end; return 0 }, "b": serves(0),
	}})
	s.runGroup(m)
	has := func(pods int) func() bool {
		return func() bool {
			hosts, _ := os.ReadFile(podyaml.HostsFile(filepath.Join(s.volumes, "u-2"))) // not there before the pod
			return strings.Count(string(hosts), "both.default.svc.cluster.local") == pods
		}
	}
	s.until("an entry of both pods", has(2))
	close(end)
	s.until("the end of the first pod's entry", has(1))
	s.cancel()
	s.wait()
}

// TestHostsFileIsThatOfTheLastChange: names that were read before another change are not written after it.
func TestHostsFileIsThatOfTheLastChange(t *testing.T) {
	s := newScene(t, "  containers: [{name: a, image: \"x:1\"}]\n", &fakeRuntime{})
	reading := make(chan struct{})
	var reads atomic.Int32
	s.opts.Names = func() []network.Names {
		if reads.Add(1) == 1 {
			close(reading)
			time.Sleep(50 * time.Millisecond) // time for the other to write
			return nil
		}
		return []network.Names{{IP: "192.0.2.1", Names: []string{"late"}}}
	}
	k := newPodRun(s.opts)
	if err := os.MkdirAll(k.facts.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	first := make(chan error, 1)
	go func() { first <- k.writeHosts() }()
	<-reading
	if err := errors.Join(k.writeHosts(), <-first); err != nil {
		t.Fatal(err)
	}
	if hosts, err := os.ReadFile(podyaml.HostsFile(k.facts.Dir)); err != nil || !strings.Contains(string(hosts), "late") {
		t.Errorf("the hosts file is\n%s%v", hosts, err)
	}
}
