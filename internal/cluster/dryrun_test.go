package cluster

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/cluster/changes"
	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// TestApplyChecksFirst: apply refuses what it could not create before it removes or changes
// anything. A retry finds the cluster as it was.
func TestApplyChecksFirst(t *testing.T) {
	busy, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	_, port, _ := net.SplitHostPort(busy.Addr().String())
	for text, want := range map[string]struct {
		kind error
		says string
	}{
		"{role: worker, image: \"newer:1\"}":   {errs.Invalid, "the image newer:1 has Kubernetes v1.37.0, and the cluster v1.36.3"},
		"{role: worker, image: \"foreign:1\"}": {errs.Unsupported, "the image foreign:1 of dev-worker2 is neither"},
		"{role: worker, image: \"other:1\", extraPortMappings: [{containerPort: 80, hostPort: " + port + "}]}": {errs.Exists, "of dev-worker2 is in use on this host"},
		"{role: worker, extraPortMappings: [{containerPort: 80, hostPort: " + port + "}]}":                     {errs.Exists, "of dev-worker2 is in use on this host"},
		// A valid patch that matches no document.
		"{role: worker, kubeadmConfigPatchesJSON6902: [{group: kubeadm.k8s.io, version: v1beta4, kind: JoinConfiguration, patch: \"[{op: remove, path: /none}]\"}]}": {
			errs.Invalid, "cannot make the kubeadm configuration of dev-worker2: patches of the node",
		},
	} {
		f := clustertest.New(t)
		f.Versions = map[string]string{"newer:1": "v1.37.0", "foreign:1": "none"}
		c := create(t, f, "nodes: [{}, {role: worker}, {role: worker}]\n")
		before, nodes, volumes := state(f), f.Nodes, maps.Clone(f.Volumes)
		for range 2 {
			err := c.Apply(t.Context(), clustertest.Describe(t, "nodes: [{}, {role: worker, labels: {a: b}}, "+text+"]\n"), ApplyOptions{})
			if !errors.Is(err, want.kind) || !strings.Contains(fmt.Sprint(err), want.says) || !strings.Contains(fmt.Sprint(err), "nothing was changed") {
				t.Errorf("%s: %v, want %s", text, err, want.says)
			}
			same := slices.EqualFunc(nodes, f.Nodes, func(a, b provider.Node) bool { return a.Name == b.Name && a.IPv4 == b.IPv4 })
			if state(f) != before || !same || !maps.Equal(volumes, f.Volumes) || len(f.Changed) > 0 {
				t.Errorf("%s: %s, before %s; volumes %v, before %v; changed %q", text, state(f), before, f.Volumes, volumes, f.Changed)
			}
		}
	}
}

// TestNoPlaneRuns: apply does not remove the last running control plane while others are stopped.
func TestNoPlaneRuns(t *testing.T) {
	f := clustertest.New(t)
	c := create(t, f, "nodes: [{}, {}, {role: worker}]\n")
	if err := f.Stop(t.Context(), "dev-control-plane2"); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"nodes: [{image: \"other:1\"}, {}, {role: worker}]\n", "nodes: [{name: control-plane2}, {role: worker}]\n"} {
		before := state(f)
		err := c.Apply(t.Context(), clustertest.Describe(t, text), ApplyOptions{})
		if !errors.Is(err, errs.State) || !strings.Contains(err.Error(), "dev-control-plane: no other control plane runs") || state(f) != before || len(f.Changed) > 0 {
			t.Errorf("%v; %s, before %s, %q", err, state(f), before, f.Changed)
		}
	}
}

// TestPortsChange: a worker whose ports change keeps its volume, also if an earlier attempt failed.
// A worker whose image changes does not.
func TestPortsChange(t *testing.T) {
	f := clustertest.New(t)
	c := create(t, f, "nodes: [{}, {role: worker}, {role: worker}]\n")
	volumes := maps.Clone(f.Volumes)
	edited := clustertest.Describe(t, "nodes: [{}, {role: worker, extraPortMappings: [{containerPort: 80}]}, {role: worker, image: \"other:1\"}]\n")
	var planned changes.Changes
	agree := func(c changes.Changes) error {
		planned = c
		return nil
	}
	f.FailOn = "dev-worker: kubeadm join"
	if err := c.Apply(t.Context(), edited, ApplyOptions{Agree: agree}); !errors.Is(err, clustertest.ErrFake) {
		t.Fatal(err)
	}
	if !slices.Equal(planned.Recreate, []string{"dev-worker"}) || !slices.Equal(planned.Replace, []string{"dev-worker2"}) {
		t.Errorf("planned %+v", planned)
	}
	if f.Volumes["dev-worker"] != volumes["dev-worker"] || strings.Contains(state(f), "worker ") {
		t.Errorf("after a failure: %s, volumes %v, before %v", state(f), f.Volumes, volumes)
	}
	f.FailOn = ""
	if err := c.Apply(t.Context(), edited, ApplyOptions{Agree: agree}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(planned.Add, []string{"dev-worker"}) || f.Volumes["dev-worker"] != volumes["dev-worker"] || f.Volumes["dev-worker2"] == volumes["dev-worker2"] {
		t.Errorf("planned %+v; volumes %v, before %v", planned, f.Volumes, volumes)
	}
	if got, want := state(f), "[control-plane worker worker2] [control-plane worker worker2] [control-plane] []"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestApplyFromAnotherShell: the caller of apply may have other proxy settings.
func TestApplyFromAnotherShell(t *testing.T) {
	f := clustertest.New(t)
	f.Env = map[string]string{"HTTPS_PROXY": "http://one:3128"}
	c := create(t, f, twoWorkers)
	f.Env = map[string]string{"HTTPS_PROXY": "http://two:3128", "http_proxy": "http://three:3128"}
	var planned []string
	err := c.Apply(t.Context(), clustertest.Describe(t, twoWorkers), ApplyOptions{Agree: func(c changes.Changes) error {
		planned = c.Lines()
		return nil
	}})
	if err != nil || len(planned) > 0 {
		t.Errorf("%v, %q", err, planned)
	}
}

// TestTrialThatWasLeft: a killed change leaves a trial container. It does not count as a node, and
// the next change removes it.
func TestTrialThatWasLeft(t *testing.T) {
	f := clustertest.New(t)
	c := create(t, f, twoWorkers)
	before := state(f)
	left := provider.Spec{
		Container: plan.Container{Name: "dev-trial-abcdef0", Role: inventory.TrialRole, Labels: map[string]string{plan.LabelCluster: "dev", plan.LabelRole: inventory.TrialRole}},
		Command:   []string{"sleep", "600"},
	}
	if err := f.Create(t.Context(), provider.Request{Specs: []provider.Spec{left}}); err != nil {
		t.Fatal(err)
	}
	for _, list := range []func() ([]provider.Node, error){
		func() ([]provider.Node, error) { return inventory.Nodes(t.Context(), c.Provider, "dev") },
		func() ([]provider.Node, error) { return inventory.AllNodes(t.Context(), c.Provider) },
	} {
		if all, err := list(); err != nil || len(all) != 3 {
			t.Errorf("nodes are %v, %v", inventory.Names(all), err)
		}
	}
	edited := "nodes: [{}, {role: worker, image: \"other:1\"}, {role: worker}]\n"
	if err := c.Apply(t.Context(), clustertest.Describe(t, edited), ApplyOptions{Wait: time.Second}); err != nil {
		t.Fatal(err)
	}
	if after := state(f); after != before {
		t.Errorf("%s, before %s", after, before)
	}
}
