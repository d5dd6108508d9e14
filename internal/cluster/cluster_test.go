package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/innode"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/kubeapi"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/provider/hostcheck"
	"github.com/berthrun/berth/internal/errs"
)

// describe reads a description.
func describe(t *testing.T, text string) *config.Cluster {
	t.Helper()
	c, err := config.Load("f", []byte("apiVersion: berth.run/v1alpha1\nkind: Cluster\nname: dev\n"+text), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const twoWorkers = "pools: [{name: worker, count: 2}]\n"

func TestCreateAndDelete(t *testing.T) {
	f := newFake(t)
	c, steps := f.clusters()
	file, err := c.Create(t.Context(), CreateOptions{Cluster: describe(t, twoWorkers), Wait: time.Minute})
	if err != nil || file != c.Kubeconfig[0] {
		t.Fatalf("%q, %v", file, err)
	}
	want := []string{
		"Ensuring the node image", "Making nodes", "Setting up the nodes", "warning: " + noPolicies, "Starting the control plane", "Joining workers", "Installing add-ons",
		"Connecting the nodes' pods", "Writing kubeconfig", "Waiting for all nodes to be Ready",
	}
	if !slices.Equal(*steps, want) {
		t.Errorf("steps %q", *steps)
	}
	if slices.Sort(f.joined); !slices.Equal(f.joined, []string{"dev-control-plane", "dev-worker", "dev-worker2"}) {
		t.Errorf("joined: %q", f.joined)
	}
	var started []string
	for _, line := range f.ran {
		if node, command, _ := strings.Cut(line, ": "); strings.HasSuffix(command, "systemctl start berth-routes.service berth.service") {
			started = append(started, node)
		}
	}
	if slices.Sort(started); !slices.Equal(started, f.joined) {
		t.Errorf("runtimes were started on %q", started)
	}
	if text := f.files["dev-worker:/etc/berth/cluster/kubeadm.yaml"]; !strings.Contains(text, "dev-control-plane:6443") || !strings.Contains(text, "JoinConfiguration") {
		t.Errorf("kubeadm's configuration of a worker:\n%s", text)
	}
	kube, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(kube), "current-context: berth-dev") || !strings.Contains(string(kube), "server: "+f.api.URL) {
		t.Errorf("%v\n%s", err, kube)
	}

	if text := f.files["dev-control-plane:applied"]; !strings.Contains(text, "kind: StorageClass") {
		t.Errorf("applied was %q", text)
	}

	if _, err := c.Create(t.Context(), CreateOptions{Cluster: describe(t, "")}); !errors.Is(err, errs.Exists) || !strings.Contains(err.Error(), `node(s) already exist for a cluster with the name "dev"`) {
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
	// As with kind, no context is the current one then.
	if kube, err = os.ReadFile(file); err != nil || strings.Contains(string(kube), "berth-dev") || !strings.Contains(string(kube), `current-context: ""`) || len(f.nodes) > 0 {
		t.Errorf("left: %v, %v\n%s", f.nodes, err, kube)
	}
}

// TestMeant: who names no cluster means the only one, whatever file its name came from.
func TestMeant(t *testing.T) {
	f := newFake(t)
	c, _ := f.clusters()
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

// TestDeleteOfWhatIsGone: somebody has removed the containers. What the kubeconfig has of the
// cluster goes all the same, and what kind has there under the same name stays.
func TestDeleteOfWhatIsGone(t *testing.T) {
	f := newFake(t)
	c, _ := f.clusters()
	described, err := config.Load("f", []byte("kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nname: dev\n"), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: described}); err != nil {
		t.Fatal(err)
	}
	f.nodes = nil
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

// TestNetworkStays: as kind has it, scripts connect containers to it between two clusters.
func TestNetworkStays(t *testing.T) {
	f := newFake(t)
	withRegistry(t, f)
	c, _ := f.clusters()
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: describe(t, twoWorkers+"registry: {enabled: true, port: 0}\n")}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := c.Delete(t.Context(), "dev"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.DeleteRegistry(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(f.removed) > 0 || !f.network || len(f.nodes) > 0 {
		t.Errorf("removed %q, the network is there: %v, left: %v", f.removed, f.network, inventory.Names(f.nodes))
	}
}

// TestCreateFails: at each call in turn, and nothing is left.
func TestCreateFails(t *testing.T) {
	for name, text := range map[string]string{"workers": twoWorkers, "control planes": threePlanes} {
		t.Run(name, func(t *testing.T) { createFails(t, text) })
	}
}

func createFails(t *testing.T, text string) {
	for at := 1; ; at++ {
		f := newFake(t)
		f.failAt = at
		c, _ := f.clusters()
		_, err := c.Create(t.Context(), CreateOptions{Cluster: describe(t, text)})
		if err == nil {
			if at < 15 {
				t.Errorf("only %d calls make the cluster", at-1)
			}
			return
		}
		if !errors.Is(err, errFake) || !strings.Contains(err.Error(), "cannot create the cluster dev") {
			t.Errorf("call %d: %v", at, err)
		}
		if len(f.nodes) > 0 || f.network {
			t.Errorf("call %d (%v): %v and a network %v are left", at, err, f.nodes, f.network)
		}
		if _, err := os.Stat(c.Kubeconfig[0]); err == nil {
			t.Errorf("call %d: a kubeconfig is left", at)
		}
	}
}

// TestNoPlaceInTheKubeconfig: that is told before anything is made.
func TestNoPlaceInTheKubeconfig(t *testing.T) {
	f := newFake(t)
	c, steps := f.clusters()
	if err := os.WriteFile(c.Kubeconfig[0], []byte("a: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := c.Create(t.Context(), CreateOptions{Cluster: describe(t, "")})
	if err == nil || !strings.Contains(err.Error(), "the cluster dev would have no place in the kubeconfig: cannot read kubeconfig "+c.Kubeconfig[0]) || len(*steps) > 0 {
		t.Errorf("%v, %q", err, *steps)
	}
}

// TestFailureSaysWhy: kubeadm tells that it has waited, the kubelet for what.
func TestFailureSaysWhy(t *testing.T) {
	f := newFake(t)
	f.failOn = "kubeadm init"
	c, _ := f.clusters()
	_, err := c.Create(t.Context(), CreateOptions{Cluster: describe(t, ""), Retain: true})
	if err == nil || !strings.Contains(err.Error(), "cannot find its feet") || !strings.Contains(err.Error(), "berth cluster logs --name dev") {
		t.Errorf("%v", err)
	}
	if len(f.nodes) != 1 {
		t.Errorf("--retain leaves %v", f.nodes)
	}
}

// TestNodeEndsInTheMiddle: that is told, and not that its journal cannot be read.
func TestNodeEndsInTheMiddle(t *testing.T) {
	for want, end := range map[string]func(*fake){
		"the container dev-control-plane runs no more: it is exited, status 137": func(f *fake) {
			f.nodes[0].Running, f.nodes[0].State, f.nodes[0].ExitCode = false, "exited", 137
		},
		"the container dev-control-plane is gone; somebody has removed it": func(f *fake) { f.nodes = nil },
	} {
		f := newFake(t)
		c, _ := f.clusters()
		c.Step = func(text string) func(error) {
			if text == "Starting the control plane" {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.failOnce, f.failOn = "kubeadm init", "journalctl"
				end(f)
			}
			return func(error) {}
		}
		_, err := c.Create(t.Context(), CreateOptions{Cluster: describe(t, "")})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "journalctl") || len(f.nodes) > 0 {
			t.Errorf("%v; want %s", err, want)
		}
	}
}

// TestRetainOfHalf: an engine that fails while it makes containers leaves those that it has
// made, of which is told; with none of them nothing stays.
func TestRetainOfHalf(t *testing.T) {
	for _, retained := range []int{0, 2} {
		f := newFake(t)
		f.failAt, f.retained = 3, retained // after the image and the network
		c, steps := f.clusters()
		_, err := c.Create(t.Context(), CreateOptions{Cluster: describe(t, twoWorkers), Retain: true})
		hint, removal := strings.Contains(err.Error(), "berth cluster delete --name dev"), slices.Contains(*steps, "Removing what was made")
		if !errors.Is(err, errFake) || len(f.nodes) != retained || hint != (retained > 0) || removal == hint || f.network != (retained > 0) {
			t.Errorf("%d stay of %d, network %v, steps %q: %v", len(f.nodes), retained, f.network, *steps, err)
		}
	}
}

// TestSubnetsInUse: of the nodes' network and of the host; nothing stays of what is refused.
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
		f := newFake(t)
		f.subnets, f.routes = []netip.Prefix{netip.MustParsePrefix(test.subnet)}, []netip.Prefix{netip.MustParsePrefix(test.route)}
		c, steps := f.clusters()
		_, err := c.Create(t.Context(), CreateOptions{Cluster: describe(t, test.text)})
		switch {
		case test.want == "" && err != nil, test.want != "" && (!errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), test.want) || f.network):
			t.Errorf("%s%s, %s: %v, network %v", test.text, test.subnet, test.route, err, f.network)
		case test.warns != "" && !slices.ContainsFunc(*steps, func(s string) bool { return strings.HasPrefix(s, test.warns) }):
			t.Errorf("nobody is told: %q", *steps)
		}
	}
}

// TestPatchOfAnotherVersion: the nodes' version of Kubernetes is known when they are there.
func TestPatchOfAnotherVersion(t *testing.T) {
	f := newFake(t)
	c, steps := f.clusters()
	text := "kubeadmConfigPatches: ['{apiVersion: kubeadm.k8s.io/v1beta3, kind: ClusterConfiguration, clusterName: other}']\n"
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: describe(t, text)}); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(*steps, func(s string) bool {
		return strings.HasPrefix(s, "warning: kubeadmConfigPatches[0]: the patch changes nothing")
	}) {
		t.Errorf("nobody is told: %q", *steps)
	}
}

// TestInterrupted: Ctrl-C ends the context, between steps or while nodes are waited for; nothing
// is left all the same.
func TestInterrupted(t *testing.T) {
	for name, when := range map[string]func(f *fake, c *Clusters, interrupt func()){
		"at a step": func(_ *fake, c *Clusters, interrupt func()) {
			c.Step = func(text string) func(error) {
				if strings.HasPrefix(text, "Writing kubeconfig") {
					interrupt()
				}
				return func(error) {}
			}
		},
		"waiting": func(f *fake, _ *Clusters, interrupt func()) { f.hidden = interrupt },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			c, _ := f.clusters()
			ctx, cancel := context.WithCancelCause(t.Context())
			when(f, c, func() { cancel(errors.New("interrupt")) })
			_, err := c.Create(ctx, CreateOptions{Cluster: describe(t, "")})
			if err == nil || !strings.Contains(err.Error(), "interrupt") || len(f.nodes) > 0 || f.network {
				t.Errorf("%v; left: %v, %v", err, f.nodes, f.network)
			}
		})
	}
}

// TestNotReadyInTime: the cluster stays, and the nodes are named with their reasons.
func TestNotReadyInTime(t *testing.T) {
	f := newFake(t)
	f.notReady = true
	c, _ := f.clusters()
	file, err := c.Create(t.Context(), CreateOptions{Cluster: describe(t, twoWorkers), Wait: time.Millisecond})
	if err == nil || file == "" || len(f.nodes) != 3 {
		t.Errorf("%q, %v, %v", file, err, f.nodes)
	}
	admin, err := c.Config(t.Context(), "dev", false)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubeapi.New(admin)
	if err != nil {
		t.Fatal(err)
	}
	// The list is one answer; the context ends while it is asked for again.
	ctx, cancel := context.WithCancel(t.Context())
	nodes, err := client.Wait(ctx, func(nodes []kubeapi.Node) bool {
		if len(nodes) > 0 {
			cancel()
		}
		return false
	})
	if text := lateness([]string{"dev-control-plane", "dev-worker", "dev-worker9"}, time.Second, nodes, err).Error(); !strings.Contains(text, "dev-control-plane (no network)") || !strings.Contains(text, "dev-worker9 (the API has not heard of it)") || strings.Contains(text, "dev-worker (") {
		t.Error(text)
	}
}

func TestHostIsUnfit(t *testing.T) {
	f := newFake(t)
	c, _ := f.clusters()
	f.findings = []hostcheck.Finding{{Problem: "no modules", Fix: "mkdir", Fatal: true}}
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: describe(t, "")}); err == nil || !strings.Contains(err.Error(), "to fix it: mkdir") {
		t.Errorf("a host that lacks something: %v", err)
	}
	if f.calls > 0 {
		t.Errorf("%d calls were made", f.calls)
	}
}

func TestStopAndStart(t *testing.T) {
	f := newFake(t)
	c, _ := f.clusters()
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: describe(t, twoWorkers)}); err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(t.Context(), "dev"); err != nil || f.nodes[0].Running {
		t.Errorf("%v, %v", err, f.nodes)
	}
	if _, err := c.Config(t.Context(), "dev", false); !errors.Is(err, errs.State) || !strings.Contains(err.Error(), "no control plane of dev runs; berth cluster start --name dev") {
		t.Errorf("a kubeconfig of what does not run: %v", err)
	}
	if err := os.Remove(c.Kubeconfig[0]); err != nil {
		t.Fatal(err)
	}
	f.files = map[string]string{}
	if err := c.Start(t.Context(), "dev", time.Minute); err != nil || !f.nodes[2].Running {
		t.Errorf("%v, %v", err, f.nodes)
	}
	if _, err := os.Stat(c.Kubeconfig[0]); err != nil || len(f.files) != 3 {
		t.Errorf("after a start: %v, files %v", err, f.files)
	}
	if err := c.Stop(t.Context(), "other"); !errors.Is(err, errs.NotFound) || !strings.Contains(err.Error(), `no nodes found for cluster "other"`) {
		t.Errorf("another cluster: %v", err)
	}
}

// TestStartWithAStaleNode: a container that somebody has removed by hand leaves its node in the
// API, which the others need not wait for.
func TestStartWithAStaleNode(t *testing.T) {
	f := newFake(t)
	c, steps := f.clusters()
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: describe(t, twoWorkers)}); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(f.nodes, func(n provider.Node) bool { return n.Name == "dev-worker" })
	f.nodes = slices.Delete(f.nodes, i, i+1)
	f.files = map[string]string{}
	if err := c.Start(t.Context(), "dev", time.Minute); err != nil {
		t.Fatal(err)
	}
	if len(f.files) != 2 || f.files["dev-worker:/etc/berth/cluster/routes"] != "" {
		t.Errorf("files %v", f.files)
	}
	if !slices.ContainsFunc(*steps, func(s string) bool { return strings.Contains(s, "kubectl delete node dev-worker") }) {
		t.Errorf("nobody is told: %q", *steps)
	}
	// A container that the API does not know yet is waited for.
	wanted := every([]string{"a", "b"}, func(n kubeapi.Node) bool { return n.Ready })
	for want, nodes := range map[bool][]kubeapi.Node{
		false: {{Name: "a", Ready: true}, {Name: "stale", Ready: true}}, true: {{Name: "a", Ready: true}, {Name: "b", Ready: true}, {Name: "stale"}},
	} {
		if wanted(nodes) != want {
			t.Errorf("%v: want %v", nodes, want)
		}
	}
}

func TestRoutes(t *testing.T) {
	nodes := []kubeapi.Node{
		{Name: "a", PodCIDRs: []string{"10.244.0.0/24", "fd00:10:244::/64"}, Addresses: []string{"10.89.0.2", "fd00::2"}},
		{Name: "b", PodCIDRs: []string{"fd00:10:244:1::/64", "10.244.1.0/24"}, Addresses: []string{"10.89.0.3", "fd00::3"}},
		{Name: "c", PodCIDRs: []string{"10.244.2.0/24"}, Addresses: []string{"10.89.0.4"}},
	}
	want := `ip -4 route flush proto 177
ip -6 route flush proto 177 || :
ip -6 route replace fd00:10:244:1::/64 via fd00::3 proto 177
ip -4 route replace 10.244.1.0/24 via 10.89.0.3 proto 177
ip -4 route replace 10.244.2.0/24 via 10.89.0.4 proto 177
`
	if got := routes("a", nodes); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestMirrors: mirrors in their order, certificates copied, and what cannot be read told
// before anything is made.
func TestMirrors(t *testing.T) {
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, []byte("CERTIFICATE"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`registries:
- {host: docker.io, ca: [%q], mirrors: [{url: "https://z.example/v2/dockerhub", overridePath: true}, {url: "http://a.example:5000", skipVerify: true, capabilities: [pull], ca: [%q]}]}
- {host: "*", mirrors: [{url: "http://all.example"}]}
- {host: "r.example:5000", skipVerify: true}
`, ca, ca)
	files, err := mirrors("/etc/berth/certs.d", describe(t, text).Nodes[0].Registries)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, file := range files {
		got[file.Path] = string(file.Content)
	}
	for name, want := range map[string]string{
		"docker.io/ca-0.crt": "CERTIFICATE", "docker.io/ca-1.crt": "CERTIFICATE",
		"docker.io/hosts.toml": `server = "https://registry-1.docker.io"
ca = ["/etc/berth/certs.d/docker.io/ca-0.crt"]

[host."https://z.example/v2/dockerhub"]
capabilities = ["pull", "resolve"]
override_path = true

[host."http://a.example:5000"]
capabilities = ["pull"]
ca = ["/etc/berth/certs.d/docker.io/ca-1.crt"]
skip_verify = true
`,
		"_default/hosts.toml":       "[host.\"http://all.example\"]\ncapabilities = [\"pull\", \"resolve\"]\n",
		"r.example:5000/hosts.toml": "server = \"https://r.example:5000\"\nskip_verify = true\n",
	} {
		if name = "/etc/berth/certs.d/" + name; got[name] != want {
			t.Errorf("%s has\n%s\nwant\n%s", name, got[name], want)
		}
	}
	if err := os.Remove(ca); err != nil {
		t.Fatal(err)
	}
	f := newFake(t)
	c, _ := f.clusters()
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: describe(t, text)}); err == nil || !strings.Contains(err.Error(), "registries: docker.io") || f.calls > 0 {
		t.Errorf("%v after %d calls", err, f.calls)
	}
}

// TestCgroupDriver: with cgroup v1 systemd takes groups from under the kubelet of berth's nodes. One of
// kind's image among them keeps all with systemd's driver.
func TestCgroupDriver(t *testing.T) {
	for _, host := range []struct {
		v2, kindest bool
		want        string
	}{{true, false, "systemd"}, {false, false, "cgroupfs"}, {false, true, "systemd"}} {
		f := newFake(t)
		f.facts.CgroupV2 = host.v2
		f.kind = map[string]bool{"dev-worker": host.kindest}
		c, _ := f.clusters()
		if _, err := c.Create(t.Context(), CreateOptions{Cluster: describe(t, "networking: {disableDefaultCNI: true}\npools: [{name: worker}]\n")}); err != nil {
			t.Fatal(err)
		}
		daemon, kubelet := f.files["dev-control-plane:"+daemonFile], f.files["dev-control-plane:"+innode.KubeadmFile]
		if !strings.Contains(daemon, "\ncgroup_driver = '"+host.want+"'\n") || !strings.Contains(kubelet, "\ncgroupDriver: "+host.want+"\n") {
			t.Errorf("%+v: %s\n%s", host, daemon, kubelet)
		}
	}
}

func TestFilesOfANode(t *testing.T) {
	net := describe(t, "networking: {ipFamily: dual}\n").Networking
	script, err := services(net)
	want := `ip -4 rule flush protocol 177
ip -6 rule flush protocol 177 || :
ip -4 rule add iif berth0 to 10.96.0.0/16 type unreachable protocol 177
ip -6 rule add iif berth0 to fd00:10:96::/112 type unreachable protocol 177
`
	if err != nil || script != want {
		t.Errorf("%v\n%s", err, script)
	}
	daemon, err := daemonConfig(net, "cgroupfs", nil)
	if err != nil || !strings.Contains(daemon, "mode = 'builtin'\nawait_pod_cidr = true\ncluster_subnets = ['10.244.0.0/16', 'fd00:10:244::/56']\n") {
		t.Errorf("%v\n%s", err, daemon)
	}
	net.DisableDefaultCNI = true
	if daemon, err := daemonConfig(net, "cgroupfs", nil); err != nil || !strings.Contains(daemon, "mode = 'cni'\n") {
		t.Errorf("%v\n%s", err, daemon)
	}
}
