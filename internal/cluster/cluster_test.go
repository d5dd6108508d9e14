package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/innode"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/kubeapi"
	"github.com/berthrun/berth/internal/cluster/noderuntime"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/provider/hostcheck"
	"github.com/berthrun/berth/internal/errs"
)

const twoWorkers = "pools: [{name: worker, count: 2}]\n"

func TestCreateAndDelete(t *testing.T) {
	f := clustertest.New(t)
	c, steps := clusters(f)
	file, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, twoWorkers), Wait: time.Minute})
	if err != nil || file != c.Kubeconfig[0] {
		t.Fatalf("%q, %v", file, err)
	}
	want := []string{
		"Ensuring the node image", "Creating nodes", "Setting up the nodes", "Starting the control plane", "Joining workers", "Installing add-ons",
		"Connecting the nodes' pods", "Writing kubeconfig", "Waiting for all nodes to be Ready",
	}
	if !slices.Equal(*steps, want) {
		t.Errorf("steps %q", *steps)
	}
	if slices.Sort(f.Joined); !slices.Equal(f.Joined, []string{"dev-control-plane", "dev-worker", "dev-worker2"}) {
		t.Errorf("joined: %q", f.Joined)
	}
	var started []string
	for _, line := range f.Ran {
		if node, command, _ := strings.Cut(line, ": "); strings.HasSuffix(command, "systemctl start berth-services.service berth.service") {
			started = append(started, node)
		}
	}
	if slices.Sort(started); !slices.Equal(started, f.Joined) {
		t.Errorf("runtimes were started on %q", started)
	}
	if text := f.Files["dev-worker:/etc/berth/cluster/kubeadm.yaml"]; !strings.Contains(text, "dev-control-plane:6443") || !strings.Contains(text, "JoinConfiguration") {
		t.Errorf("kubeadm's configuration of a worker:\n%s", text)
	}
	kube, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(kube), "current-context: berth-dev") || !strings.Contains(string(kube), "server: "+f.API.URL) {
		t.Errorf("%v\n%s", err, kube)
	}

	text := f.Files["dev-control-plane:applied"]
	if !strings.Contains(text, "kind: StorageClass") || !strings.Contains(text, "name: berth-net-policy") || !strings.Contains(text, `KUBERNETES_SERVICE_HOST, value: "dev-control-plane"`) {
		t.Errorf("applied was %q", text)
	}

	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, "")}); !errors.Is(err, errs.Exists) || !strings.Contains(err.Error(), `node(s) already exist for a cluster with the name "dev"`) {
		t.Errorf("once more: %v", err)
	}
	if found, err := inventory.Clusters(t.Context(), c.Provider); err != nil || fmt.Sprint(found) != "[{dev 3 3 berth-dev}]" {
		t.Errorf("%v, %v", found, err)
	}
	for i, want := range []bool{true, false} {
		if found, err := c.Delete(t.Context(), "dev"); err != nil || found != want {
			t.Errorf("delete %d: %v, %v", i, found, err)
		}
	}
	// As with kind, the kubeconfig has no current context afterwards.
	if kube, err = os.ReadFile(file); err != nil || strings.Contains(string(kube), "berth-dev") || !strings.Contains(string(kube), `current-context: ""`) || len(f.Nodes) > 0 {
		t.Errorf("left: %v, %v\n%s", f.Nodes, err, kube)
	}
}

// TestMeant: a command without a cluster name uses the only cluster, even if its name came from a
// file.
func TestMeant(t *testing.T) {
	f := clustertest.New(t)
	c, _ := clusters(f)
	meant := func(name, want string) {
		t.Helper()
		if got, err := inventory.Resolve(t.Context(), c.Provider, name); got != want || err != nil {
			t.Errorf("%q means %q, %v; want %q", name, got, err, want)
		}
	}
	meant("", config.DefaultName)
	for i, head := range []string{"apiVersion: kind.x-k8s.io/v1alpha4\nkind: Cluster\n", "apiVersion: berth.run/v1alpha1\nkind: Cluster\nname: dev\n"} {
		described, err := config.Load("f", []byte(head), config.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Create(t.Context(), CreateOptions{Cluster: described}); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			meant("", config.DefaultKindName)
		}
	}
	meant("other", "other")
	if _, err := inventory.Resolve(t.Context(), c.Provider, ""); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "several clusters: dev, kind; say which") {
		t.Errorf("two clusters: %v", err)
	}
	if found, err := c.Delete(t.Context(), "dev"); !found || err != nil {
		t.Fatal(found, err)
	}
	meant("", config.DefaultKindName)
}

// TestEmptyName: to a provider, an empty name is that of every cluster. No verb takes it.
func TestEmptyName(t *testing.T) {
	f := clustertest.New(t)
	c := create(t, f, "")
	before, err := os.ReadFile(c.Kubeconfig[0])
	if err != nil {
		t.Fatal(err)
	}
	for verb, do := range map[string]func() error{
		"delete": func() error { _, err := c.Delete(t.Context(), ""); return err },
		"stop":   func() error { return c.Stop(t.Context(), "") },
		"start":  func() error { return c.Start(t.Context(), "", 0) },
	} {
		if err := do(); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "the name of the cluster is empty") {
			t.Errorf("%s: %v", verb, err)
		}
	}
	after, err := os.ReadFile(c.Kubeconfig[0])
	if err != nil || string(after) != string(before) || len(f.Nodes) != 1 || !f.Nodes[0].Running {
		t.Errorf("nodes %v, %v\n%s", f.Nodes, err, after)
	}
}

// TestDeleteOfWhatIsGone: the containers were removed by hand. delete still removes the cluster's
// entries from the kubeconfig, and keeps kind's entries with the same name.
func TestDeleteOfWhatIsGone(t *testing.T) {
	f := clustertest.New(t)
	c, _ := clusters(f)
	described, err := config.Load("f", []byte("kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nname: dev\n"), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: described}); err != nil {
		t.Fatal(err)
	}
	f.Nodes = nil
	if found, err := c.Delete(t.Context(), "dev"); err != nil || found {
		t.Errorf("%v, %v", found, err)
	}
	text, err := os.ReadFile(c.Kubeconfig[0])
	if err != nil || strings.Contains(string(text), "kind-dev") {
		t.Errorf("left: %s, %v", text, err)
	}
	const foreign = "apiVersion: v1\nkind: Config\nclusters: [{name: kind-dev, cluster: {server: 'https://a'}}]\nusers: [{name: kind-dev, user: {}}]\n" +
		"contexts: [{name: kind-dev, context: {cluster: kind-dev, user: kind-dev}}]\ncurrent-context: kind-dev\n"
	if err := os.WriteFile(c.Kubeconfig[0], []byte(foreign), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Delete(t.Context(), "dev"); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(c.Kubeconfig[0]); err != nil || string(text) != foreign {
		t.Errorf("kind's is changed: %s, %v", text, err)
	}
}

// TestNetworkStays: as with kind, the network stays. Scripts connect containers to it between two
// clusters.
func TestNetworkStays(t *testing.T) {
	f := clustertest.New(t)
	withRegistry(t, f)
	c, _ := clusters(f)
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, twoWorkers+"registry: {enabled: true, port: 0}\n")}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := c.Delete(t.Context(), "dev"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Registry().Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(f.Removed) > 0 || !f.Network || len(f.Nodes) > 0 {
		t.Errorf("removed %q, the network is there: %v, left: %v", f.Removed, f.Network, inventory.Names(f.Nodes))
	}
}

// TestCreateFails: each call fails in turn. Nothing is left.
func TestCreateFails(t *testing.T) {
	for name, text := range map[string]string{"workers": twoWorkers, "control planes": threePlanes} {
		t.Run(name, func(t *testing.T) { createFails(t, text) })
	}
}

func createFails(t *testing.T, text string) {
	for at := 1; ; at++ {
		f := clustertest.New(t)
		f.FailAt = at
		c, _ := clusters(f)
		_, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, text)})
		if err == nil {
			if at < 15 {
				t.Errorf("only %d calls make the cluster", at-1)
			}
			return
		}
		if !errors.Is(err, clustertest.ErrFake) || !strings.Contains(err.Error(), "cannot create the cluster dev") {
			t.Errorf("call %d: %v", at, err)
		}
		if len(f.Nodes) > 0 || f.Network {
			t.Errorf("call %d (%v): %v and a network %v are left", at, err, f.Nodes, f.Network)
		}
		if _, err := os.Stat(c.Kubeconfig[0]); err == nil {
			t.Errorf("call %d: a kubeconfig is left", at)
		}
	}
}

// TestNoPlaceInTheKubeconfig: create reports the error before it creates anything.
func TestNoPlaceInTheKubeconfig(t *testing.T) {
	f := clustertest.New(t)
	c, steps := clusters(f)
	if err := os.WriteFile(c.Kubeconfig[0], []byte("a: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, "")})
	if err == nil || !strings.Contains(err.Error(), "the cluster dev would have no place in the kubeconfig: cannot read kubeconfig "+c.Kubeconfig[0]) || len(*steps) > 0 {
		t.Errorf("%v, %q", err, *steps)
	}
}

// TestFailureSaysWhy: kubeadm reports only a timeout. The kubelet's log has the reason.
func TestFailureSaysWhy(t *testing.T) {
	f := clustertest.New(t)
	f.FailOn = "kubeadm init"
	c, _ := clusters(f)
	_, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, ""), Retain: true})
	if err == nil || !strings.Contains(err.Error(), "cannot find its feet") || !strings.Contains(err.Error(), "berth cluster logs --name dev") {
		t.Errorf("%v", err)
	}
	if len(f.Nodes) != 1 {
		t.Errorf("--retain leaves %v", f.Nodes)
	}
}

// TestNodeEndsInTheMiddle: the error reports that the node exited, and not that the journal is
// unreadable.
func TestNodeEndsInTheMiddle(t *testing.T) {
	for want, end := range map[string]func(*clustertest.Fake){
		"the container dev-control-plane runs no more: it is exited, status 137": func(f *clustertest.Fake) {
			f.Nodes[0].Running, f.Nodes[0].State, f.Nodes[0].ExitCode = false, "exited", 137
		},
		"the container dev-control-plane is gone; somebody has removed it": func(f *clustertest.Fake) { f.Nodes = nil },
	} {
		f := clustertest.New(t)
		c, _ := clusters(f)
		c.Step = func(text string) func(error) {
			if text == "Starting the control plane" {
				f.Mu.Lock()
				defer f.Mu.Unlock()
				f.FailOnce, f.FailOn = "kubeadm init", "journalctl"
				end(f)
			}
			return func(error) {}
		}
		_, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, "")})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "journalctl") || len(f.Nodes) > 0 {
			t.Errorf("%v; want %s", err, want)
		}
	}
}

// TestRetainOfHalf: an engine fails while it creates containers. With Retain those that exist stay,
// and the error names them. If there are none, nothing stays.
func TestRetainOfHalf(t *testing.T) {
	for _, retained := range []int{0, 2} {
		f := clustertest.New(t)
		f.FailAt, f.Retained = 3, retained // after the image and the network
		c, steps := clusters(f)
		_, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, twoWorkers), Retain: true})
		hint, removal := strings.Contains(err.Error(), "berth cluster delete --name dev"), slices.Contains(*steps, "Removing what was made")
		if !errors.Is(err, clustertest.ErrFake) || len(f.Nodes) != retained || hint != (retained > 0) || removal == hint || f.Network != (retained > 0) {
			t.Errorf("%d stay of %d, network %v, steps %q: %v", len(f.Nodes), retained, f.Network, *steps, err)
		}
	}
}

// TestSubnetsInUse: subnets in use by the nodes' network or by the host are refused. Nothing of the
// cluster stays.
func TestSubnetsInUse(t *testing.T) {
	const own, of = "networking: {podSubnet: 10.89.0.0/16}\n", "networking: {serviceSubnet: 192.0.2.0/24}\n"
	for _, test := range []struct {
		text, subnet, route string
		want, warns         string
	}{
		{"", "10.89.0.0/24", "192.0.2.0/24", "", ""},
		{own, "10.89.0.0/24", "192.0.2.0/24", "networking.podSubnet: 10.89.0.0/16 overlaps 10.89.0.0/24, the network kind of podman, which nodes are on; choose another", ""},
		{of, "10.89.0.0/24", "192.0.2.0/24", "networking.serviceSubnet: 192.0.2.0/24 overlaps 192.0.2.0/24, to which this host has a route; choose another", ""},
		{of, "10.89.0.0/24", "192.0.2.128/25", "networking.serviceSubnet: 192.0.2.0/24 overlaps 192.0.2.128/25", ""},
		{of, "10.89.0.0/24", "192.0.0.0/16", "", "warning: networking.serviceSubnet: 192.0.2.0/24 is a part of 192.0.0.0/16"},
	} {
		f := clustertest.New(t)
		f.Subnets, f.Routes = []netip.Prefix{netip.MustParsePrefix(test.subnet)}, []netip.Prefix{netip.MustParsePrefix(test.route)}
		c, steps := clusters(f)
		_, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, test.text)})
		switch {
		case test.want == "" && err != nil, test.want != "" && (!errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), test.want) || f.Network):
			t.Errorf("%s%s, %s: %v, network %v", test.text, test.subnet, test.route, err, f.Network)
		case test.warns != "" && !slices.ContainsFunc(*steps, func(s string) bool { return strings.HasPrefix(s, test.warns) }):
			t.Errorf("nobody is told: %q", *steps)
		}
	}
}

// TestPatchOfAnotherVersion: the Kubernetes version of the nodes is known only once they exist.
func TestPatchOfAnotherVersion(t *testing.T) {
	f := clustertest.New(t)
	c, steps := clusters(f)
	text := "kubeadmConfigPatches: ['{apiVersion: kubeadm.k8s.io/v1beta3, kind: ClusterConfiguration, clusterName: other}']\n"
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, text)}); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(*steps, func(s string) bool {
		return strings.HasPrefix(s, "warning: kubeadmConfigPatches[0]: the patch changes nothing")
	}) {
		t.Errorf("nobody is told: %q", *steps)
	}
}

// TestInterrupted: Ctrl-C cancels the context between steps, or while create waits for nodes.
// Nothing is left.
func TestInterrupted(t *testing.T) {
	for name, when := range map[string]func(f *clustertest.Fake, c *Clusters, interrupt func()){
		"at a step": func(_ *clustertest.Fake, c *Clusters, interrupt func()) {
			c.Step = func(text string) func(error) {
				if strings.HasPrefix(text, "Writing kubeconfig") {
					interrupt()
				}
				return func(error) {}
			}
		},
		"waiting": func(f *clustertest.Fake, _ *Clusters, interrupt func()) { f.Hidden = interrupt },
	} {
		t.Run(name, func(t *testing.T) {
			f := clustertest.New(t)
			c, _ := clusters(f)
			ctx, cancel := context.WithCancelCause(t.Context())
			when(f, c, func() { cancel(errors.New("interrupt")) })
			_, err := c.Create(ctx, CreateOptions{Cluster: clustertest.Describe(t, "")})
			if err == nil || !strings.Contains(err.Error(), "interrupt") || len(f.Nodes) > 0 || f.Network {
				t.Errorf("%v; left: %v, %v", err, f.Nodes, f.Network)
			}
		})
	}
}

// TestNotReadyInTime: the cluster stays. The error names the nodes with their reasons.
func TestNotReadyInTime(t *testing.T) {
	f := clustertest.New(t)
	f.NotReady = "dev-control-plane"
	c, _ := clusters(f)
	file, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, twoWorkers), Wait: time.Millisecond})
	if err == nil || file == "" || len(f.Nodes) != 3 {
		t.Errorf("%q, %v, %v", file, err, f.Nodes)
	}
	admin, err := c.Config(t.Context(), "dev", false)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubeapi.New(admin, nil)
	if err != nil {
		t.Fatal(err)
	}
	// The first list is answered. The context ends during the second one.
	ctx, cancel := context.WithCancel(t.Context())
	nodes, err := client.WaitForNodes(ctx, func(nodes []kubeapi.Node) bool {
		if len(nodes) > 0 {
			cancel()
		}
		return false
	})
	if text := notReadyError([]string{"dev-control-plane", "dev-worker", "dev-worker9"}, nil, time.Second, nodes, err).Error(); !strings.Contains(text, "dev-control-plane (no network)") || !strings.Contains(text, "dev-worker9 (the API has not heard of it)") || strings.Contains(text, "dev-worker (") {
		t.Error(text)
	}
}

func TestHostIsUnfit(t *testing.T) {
	f := clustertest.New(t)
	c, _ := clusters(f)
	f.Unmet = []hostcheck.UnmetRequirement{hostcheck.Problem("no modules", "mkdir")}
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, "")}); err == nil || !strings.Contains(err.Error(), "to fix it: mkdir") {
		t.Errorf("a host that lacks something: %v", err)
	}
	if f.Calls > 0 {
		t.Errorf("%d calls were made", f.Calls)
	}
}

func TestStopAndStart(t *testing.T) {
	f := clustertest.New(t)
	c, _ := clusters(f)
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, twoWorkers)}); err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(t.Context(), "dev"); err != nil || f.Nodes[0].Running {
		t.Errorf("%v, %v", err, f.Nodes)
	}
	if _, err := c.Config(t.Context(), "dev", false); !errors.Is(err, errs.State) || !strings.Contains(err.Error(), "no control plane of dev runs; berth cluster start --name dev") {
		t.Errorf("a kubeconfig of what does not run: %v", err)
	}
	f.Files = map[string]string{}
	if err := c.Start(t.Context(), "dev", time.Minute); err != nil || !f.Nodes[2].Running {
		t.Errorf("%v, %v", err, f.Nodes)
	}
	if len(f.Files) != 3 {
		t.Errorf("after a start: files %v", f.Files)
	}
	if err := c.Stop(t.Context(), "other"); !errors.Is(err, errs.NotFound) || !strings.Contains(err.Error(), `no nodes found for cluster "other"`) {
		t.Errorf("another cluster: %v", err)
	}
}

// TestStartWithAnOlderBerth: a node whose berth has no `berth net route` is named, with what to do.
func TestStartWithAnOlderBerth(t *testing.T) {
	f := clustertest.New(t)
	c, _ := clusters(f)
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, twoWorkers)}); err != nil {
		t.Fatal(err)
	}
	for _, line := range f.Ran {
		// Without a flag that is unknown to it an older berth prints its help, and succeeds.
		if strings.Contains(line, "net route set") && !strings.Contains(line, " --config ") {
			t.Error(line)
		}
	}
	f.FailOn = "dev-worker: /usr/local/bin/berth net route set"
	err := c.Start(t.Context(), "dev", time.Minute)
	if err == nil || !strings.Contains(err.Error(), "into dev-worker (if its image has an older berth, create the cluster again)") {
		t.Error(err)
	}
}

// TestNodeImageOfAnOlderBerth: a node without the unit of a newer berth names the image as the cause.
func TestNodeImageOfAnOlderBerth(t *testing.T) {
	for code, want := range map[string]string{"0": "", "1": "berth cluster build-image"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte("#!/bin/sh\nexit "+code+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		script := exec.CommandContext(t.Context(), "sh", "-c", needServices+"true")
		script.Env = []string{"PATH=" + dir + ":/usr/bin:/bin"}
		out, err := script.CombinedOutput()
		if (err != nil) != (want != "") || !strings.Contains(string(out), want) {
			t.Errorf("systemctl exits with %s: %v, %q, want %q", code, err, out, want)
		}
	}
}

// TestStartWithAStaleNode: a container that was removed by hand leaves its node in the API. start
// does not wait for it.
func TestStartWithAStaleNode(t *testing.T) {
	f := clustertest.New(t)
	c, steps := clusters(f)
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, twoWorkers)}); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(f.Nodes, func(n provider.Node) bool { return n.Name == "dev-worker" })
	f.Nodes = slices.Delete(f.Nodes, i, i+1)
	f.Files = map[string]string{}
	if err := c.Start(t.Context(), "dev", time.Minute); err != nil {
		t.Fatal(err)
	}
	if len(f.Files) != 2 || f.Files["dev-worker:routes"] != "" {
		t.Errorf("files %v", f.Files)
	}
	if !slices.ContainsFunc(*steps, func(s string) bool { return strings.Contains(s, "kubectl delete node dev-worker") }) {
		t.Errorf("nobody is told: %q", *steps)
	}
	// start waits for a container that the API does not know yet.
	wanted := kubeapi.AllNodes([]string{"a", "b"}, func(n kubeapi.Node) bool { return n.Ready })
	for want, nodes := range map[bool][]kubeapi.Node{
		false: {{Name: "a", Ready: true}, {Name: "stale", Ready: true}}, true: {{Name: "a", Ready: true}, {Name: "b", Ready: true}, {Name: "stale"}},
	} {
		if wanted(nodes) != want {
			t.Errorf("%v: want %v", nodes, want)
		}
	}
}

// TestCgroupDriver: with cgroup v1 systemd removes cgroups that the kubelet of berth's nodes uses,
// so the driver is cgroupfs. If one node has kind's image, all nodes use systemd's driver.
func TestCgroupDriver(t *testing.T) {
	for _, host := range []struct {
		v2, kindest bool
		want        string
	}{{true, false, "systemd"}, {false, false, "cgroupfs"}, {false, true, "systemd"}} {
		f := clustertest.New(t)
		f.FakeFacts.CgroupV2 = host.v2
		f.Kind = map[string]bool{"dev-worker": host.kindest}
		c, _ := clusters(f)
		if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, "networking: {disableDefaultCNI: true}\npools: [{name: worker}]\n")}); err != nil {
			t.Fatal(err)
		}
		daemon, kubelet := f.Files["dev-control-plane:"+noderuntime.DaemonFile], f.Files["dev-control-plane:"+innode.KubeadmFile]
		if !strings.Contains(daemon, "\ncgroup_driver = '"+host.want+"'\n") || !strings.Contains(kubelet, "\ncgroupDriver: "+host.want+"\n") {
			t.Errorf("%+v: %s\n%s", host, daemon, kubelet)
		}
	}
}

// TestMirrors: an unreadable certificate is refused before anything is created.
func TestMirrors(t *testing.T) {
	text := fmt.Sprintf("registries: [{host: docker.io, ca: [%q]}]\n", filepath.Join(t.TempDir(), "ca.pem"))
	f := clustertest.New(t)
	c, _ := clusters(f)
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, text)}); err == nil || !strings.Contains(err.Error(), "registries: docker.io") || f.Calls > 0 {
		t.Errorf("%v after %d calls", err, f.Calls)
	}
}

// TestCreatePrefersUDP: a new cluster has the option in its CoreDNS.
func TestCreatePrefersUDP(t *testing.T) {
	f := clustertest.New(t)
	f.CoreDNS = `{"data":{"Corefile":".:53 {\n    forward . /etc/resolv.conf {\n    }\n}\n"}}`
	c, _ := clusters(f)
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, "")}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(f.CoreDNS, `forward . /etc/resolv.conf {\n       prefer_udp\n`) {
		t.Errorf("the ConfigMap is %s", f.CoreDNS)
	}
}
