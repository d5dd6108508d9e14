package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/cluster/changes"
	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/provider/hostcheck"
	"github.com/berthrun/berth/internal/errs"
)

// create creates a cluster, and clears the recorded calls.
func create(t *testing.T, f *clustertest.Fake, text string) *Clusters {
	t.Helper()
	c, _ := clusters(f)
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, text)}); err != nil {
		t.Fatal(err)
	}
	f.Ran, f.Calls, f.Changed = nil, 0, nil
	return c
}

// state describes a cluster: containers, nodes in the API, etcd members and servers of the load
// balancer.
func state(f *clustertest.Fake) string {
	var told struct{ Servers []struct{ Name string } }
	if f.Balanced != "" {
		if err := json.Unmarshal([]byte(f.Balanced), &told); err != nil {
			f.T.Error(err)
		}
	}
	var served []string
	for _, s := range told.Servers {
		served = append(served, s.Name)
	}
	joined, members := slices.Sorted(slices.Values(f.Joined)), slices.Sorted(slices.Values(f.Etcd))
	return strings.ReplaceAll(fmt.Sprint(inventory.Names(f.Nodes), joined, members, served), "dev-", "")
}

func description(f *clustertest.Fake) string {
	var m struct{ Data map[string]string }
	if err := json.Unmarshal([]byte(f.Config), &m); err != nil {
		f.T.Error(err)
	}
	return m.Data[descriptionKey]
}

func TestNodesComeAndGo(t *testing.T) {
	f := clustertest.New(t)
	c := create(t, f, "nodes: [{}, {}, {role: worker}]\npools: [{name: web}]\n")
	var added []string
	o := ApplyOptions{Drain: time.Minute, Wait: time.Minute, Agree: func(c changes.Changes) error {
		added = append(added, c.Add...)
		return nil
	}}
	for _, a := range []config.Addition{{Count: 1}, {Count: 1, Role: config.ControlPlane}, {Count: 1, Pool: "web"}} {
		if err := c.AddNodes(t.Context(), "dev", a, o); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"dev-worker2", "dev-control-plane3", "dev-web2"}; !slices.Equal(added, want) {
		t.Errorf("added %q, want %q", added, want)
	}
	if got, want := state(f), "[control-plane control-plane2 control-plane3 external-load-balancer web web2 worker worker2]"+
		" [control-plane control-plane2 control-plane3 web web2 worker worker2] [control-plane control-plane2 control-plane3] [control-plane control-plane2 control-plane3]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for node, want := range map[string]string{"dev-web2": "10.244", "dev-control-plane": "via 10.89.0"} {
		if routes := f.Files[node+":routes"]; !strings.Contains(routes, want) {
			t.Errorf("routes of %s: %q", node, routes)
		}
	}
	if text := description(f); !strings.Contains(text, "name: control-plane3") || !strings.Contains(text, "count: 2") {
		t.Errorf("the description kept:\n%s", text)
	}
	tokens := map[string]bool{}
	for _, text := range f.Tokens {
		var secret struct{ StringData map[string]string }
		if err := json.Unmarshal([]byte(text), &secret); err != nil {
			t.Fatal(err)
		}
		tokens[secret.StringData["token-id"]+"."+secret.StringData["token-secret"]] = true
	}
	if len(tokens) != 3 {
		t.Errorf("%d tokens", len(tokens))
	}
	for token := range tokens {
		for _, line := range f.Ran {
			if strings.Contains(line, token) {
				t.Errorf("a token is in a command line, which every user of the host sees: %s", line)
			}
		}
	}

	// The first control plane is deleted too, and so is one that does not run.
	if err := f.Stop(t.Context(), "dev-control-plane2"); err != nil {
		t.Fatal(err)
	}
	f.Changed = nil
	for _, nodes := range [][]string{{"dev-worker", "dev-web2"}, {"dev-control-plane"}, {"dev-control-plane2"}} {
		if err := c.RemoveNodes(t.Context(), "dev", nodes, o); err != nil {
			t.Fatalf("%s: %v", nodes, err)
		}
	}
	if got, want := state(f), "[control-plane3 external-load-balancer web worker2] [control-plane3 web worker2] [control-plane3] [control-plane3]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	cordon := `{"spec":{"unschedulable":true}}`
	want := []string{
		"PATCH dev-web2 " + cordon, "DELETE dev-web2 ", "PATCH dev-worker " + cordon, "DELETE dev-worker ", "PATCH dev-control-plane " + cordon, "DELETE dev-control-plane ",
		"DELETE dev-control-plane2 ",
	}
	if diff := cmp.Diff(want, f.Changed); diff != "" {
		t.Error(diff)
	}
	for nodes, want := range map[string]error{"dev-web2": errs.NotFound, "dev-external-load-balancer": errs.NotFound, "dev-control-plane3": errs.Invalid} {
		if err := c.RemoveNodes(t.Context(), "dev", []string{nodes}, o); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", nodes, err, want)
		}
	}
}

// TestHostLacks: a host that lacks something for new nodes can still remove nodes.
func TestHostLacks(t *testing.T) {
	f := clustertest.New(t)
	c := create(t, f, twoWorkers)
	f.Unmet = []hostcheck.UnmetRequirement{hostcheck.Problem("no modules", "mkdir")}
	if err := c.AddNodes(t.Context(), "dev", config.Addition{Count: 1}, ApplyOptions{}); !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "to fix it: mkdir") {
		t.Errorf("one more: %v", err)
	}
	if err := c.Apply(t.Context(), clustertest.Describe(t, twoWorkers), ApplyOptions{}); err != nil {
		t.Errorf("as it is: %v", err)
	}
	if err := c.RemoveNodes(t.Context(), "dev", []string{"dev-worker2"}, ApplyOptions{}); err != nil || len(f.Nodes) != 2 {
		t.Errorf("one less: %v, %v", err, inventory.Names(f.Nodes))
	}
}

// TestAddFails: each call fails in turn. The cluster is as before.
func TestAddFails(t *testing.T) {
	for at := 1; ; at++ {
		f := clustertest.New(t)
		c := create(t, f, "nodes: [{}, {}, {role: worker}]\n")
		before, kept := state(f), f.Config
		f.FailAt = at
		err := c.AddNodes(t.Context(), "dev", config.Addition{Count: 2, Role: config.ControlPlane}, ApplyOptions{})
		if err == nil {
			if at < 15 {
				t.Errorf("only %d calls add two nodes", at-1)
			}
			return
		}
		if !errors.Is(err, clustertest.ErrFake) || !strings.Contains(err.Error(), "cannot change the cluster dev") {
			t.Errorf("call %d: %v", at, err)
		}
		// Nodes that have joined stay. A second attempt completes the rest.
		if got := state(f); got != before && f.Config == kept && !strings.Contains(got, "control-plane3 control-plane4]") || strings.Contains(strings.Join(f.Ran, "\n"), "in-node rebalance") && got != before && !strings.Contains(got, "control-plane4") {
			t.Errorf("call %d (%v): %s, before %s", at, err, got, before)
		}
	}
}

// TestInterruptedAdd: Ctrl-C while nodes join.
func TestInterruptedAdd(t *testing.T) {
	f := clustertest.New(t)
	c := create(t, f, twoWorkers)
	before := state(f)
	ctx, cancel := context.WithCancelCause(t.Context())
	f.FailOn = "dev-worker3: kubeadm join"
	c.Step = func(text string) func(error) {
		return func(error) {
			if strings.HasPrefix(text, "Ensuring") {
				cancel(errors.New("interrupt"))
			}
		}
	}
	err := c.AddNodes(ctx, "dev", config.Addition{Count: 1}, ApplyOptions{})
	if err == nil || state(f) != before {
		t.Errorf("%v: %s, before %s", err, state(f), before)
	}
}

func TestApply(t *testing.T) {
	f := clustertest.New(t)
	c := create(t, f, "nodes: [{}, {}, {role: worker, labels: {a: b}}, {role: worker}]\n")
	var said []string
	agree := func(c changes.Changes) error {
		said = c.Lines()
		return nil
	}
	refuse := errors.New("no")
	edited := `nodes: [{}, {}, {role: worker, labels: {c: d}, registries: [{host: docker.io}]}, {role: worker, extraPortMappings: [{containerPort: 80}]}]
pools: [{name: web}]
networking: {apiServerPort: 16443}
`
	before := state(f)
	if err := c.Apply(t.Context(), clustertest.Describe(t, edited), ApplyOptions{Agree: func(changes.Changes) error { return refuse }}); !errors.Is(err, refuse) || state(f) != before {
		t.Errorf("%v: %s, before %s", err, state(f), before)
	}
	if err := c.Apply(t.Context(), clustertest.Describe(t, edited), ApplyOptions{Agree: agree, Drain: time.Minute}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"dev-worker: gets other mirrors of registries", "dev-worker: gets other labels", "dev-web: is added",
		"dev-worker2: its container is created again, and its disk stays: extraPortMappings is 0.0.0.0:a free port to 80/TCP, and was none",
		"dev-external-load-balancer: is created again, and loses its disk: networking.apiServerPort is 127.0.0.1:16443 to 6443/TCP, and was 127.0.0.1:a free port to 6443/TCP",
	}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Error(diff)
	}
	if f.Files["dev-worker:/etc/berth/certs.d/docker.io/hosts.toml"] == "" || !slices.Contains(f.Ran, "dev-worker: rm -rf /etc/berth/certs.d") {
		t.Error("no mirrors are written")
	}
	if !slices.Contains(f.Changed, `PATCH dev-worker {"metadata":{"labels":{"a":null,"c":"d"}}}`) || !slices.Contains(f.Changed, "DELETE dev-worker2 ") {
		t.Errorf("%q", f.Changed)
	}
	if got, want := state(f), "[control-plane control-plane2 external-load-balancer web worker worker2] [control-plane control-plane2 web worker worker2] [control-plane control-plane2] [control-plane control-plane2]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	f.Ran = nil
	if err := c.Apply(t.Context(), clustertest.Describe(t, edited), ApplyOptions{Agree: agree}); err != nil || len(said) > 0 {
		t.Errorf("once more: %q, %v", said, err)
	}
}

// TestApplyToWhatIsGone: apply creates a container again that was removed by hand. It first removes
// the cluster's record of the old one. If the description no longer has the node, apply only
// removes the record.
func TestApplyToWhatIsGone(t *testing.T) {
	f := clustertest.New(t)
	c := create(t, f, threePlanes)
	if err := f.Delete(t.Context(), "dev-control-plane3", "dev-worker"); err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(t.Context(), clustertest.Describe(t, "nodes: [{}, {}, {}]\n"), ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, want := state(f), "[control-plane control-plane2 control-plane3 external-load-balancer] [control-plane control-plane2 control-plane3]"+
		" [control-plane control-plane2 control-plane3] [control-plane control-plane2 control-plane3]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestCannotChange(t *testing.T) {
	f := clustertest.New(t)
	c := create(t, f, "")
	for text, want := range map[string]string{
		"nodes: [{}, {}]\n":                                      "the cluster was made with one control plane",
		"nodes: [{image: \"other:1\"}]\n":                        "dev-control-plane: the cluster's only control plane",
		"nodes: [{name: other}]\n":                               "dev-control-plane: the cluster's only control plane",
		"networking: {podSubnet: 10.1.0.0/16, ipFamily: ipv4}\n": "networking.podSubnet: cannot be changed",
		"featureGates: {A: true}\nkubeadmConfigPatches: [\"{kind: KubeletConfiguration, maxPods: 5}\"]\n": "kubeadmConfigPatches: cannot be changed",
	} {
		if err := c.Apply(t.Context(), clustertest.Describe(t, text), ApplyOptions{}); !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if f.Calls > 5 || len(f.Changed) > 0 { // each call looks for the network
		t.Errorf("%d calls, %q", f.Calls, f.Changed)
	}
	f.Config = ""
	if err := c.Apply(t.Context(), clustertest.Describe(t, twoWorkers), ApplyOptions{}); !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "has no stored cluster file") {
		t.Errorf("a cluster of an older berth: %v", err)
	}
	if err := c.Stop(t.Context(), "dev"); err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(t.Context(), clustertest.Describe(t, twoWorkers), ApplyOptions{}); !errors.Is(err, errs.State) || !strings.Contains(err.Error(), "berth cluster start --name dev") {
		t.Errorf("a cluster that is stopped: %v", err)
	}
	if err := c.AddNodes(t.Context(), "none", config.Addition{Count: 1}, ApplyOptions{}); !errors.Is(err, errs.NotFound) {
		t.Errorf("no cluster: %v", err)
	}
}

// TestChangesOfContainerd: nodes of kindest/node have their own runtime. berth writes mirrors where
// this runtime looks for them. The image installs the routes.
func TestChangesOfContainerd(t *testing.T) {
	f := kindest(t, "dev-control-plane", "dev-worker", "dev-worker2")
	c := create(t, f, "nodes: [{}, {role: worker}]\n")
	if err := c.AddNodes(t.Context(), "dev", config.Addition{Count: 1}, ApplyOptions{Wait: time.Minute}); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(f.Ran, "dev-worker2: kubeadm join --config=/kind/kubeadm.conf") {
		t.Errorf("ran %q", f.Ran)
	}
	if err := c.Apply(t.Context(), clustertest.Describe(t, "nodes: [{}, {role: worker}, {role: worker}]\nregistries: [{host: r.example, skipVerify: true}]\n"), ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := f.Files["dev-worker2:/etc/containerd/certs.d/r.example/hosts.toml"]; !strings.Contains(got, "skip_verify") {
		t.Errorf("mirrors: %q", got)
	}
	for _, line := range f.Ran {
		if strings.Contains(line, "net route") || strings.Contains(line, "/etc/berth") {
			t.Errorf("a node of containerd was told: %s", line)
		}
	}
	delete(f.Kind, "dev-worker3")
	if err := c.AddNodes(t.Context(), "dev", config.Addition{Count: 1}, ApplyOptions{}); !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "one kind of image") {
		t.Errorf("a node of berth among those of containerd: %v", err)
	}
}
