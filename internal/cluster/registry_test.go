package cluster

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/registry"
	"github.com/berthrun/berth/internal/cluster/registry/server"
	"github.com/berthrun/berth/internal/errs"
)

// withRegistry makes the fake's registry answer on a port of this host.
func withRegistry(t *testing.T, f *clustertest.Fake) int {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(server.WritersHeader, "host")
	}))
	t.Cleanup(server.Close)
	f.RegistryPort = int(netip.MustParseAddrPort(strings.TrimPrefix(server.URL, "http://")).Port())
	return f.RegistryPort
}

// TestNoRegistry: an invalid registry is refused, and nothing is created.
func TestNoRegistry(t *testing.T) {
	for want, o := range map[string]registry.Options{
		"port 70000: want 1 to 65535":                   {Port: 70000},
		"port -1: want 1 to 65535":                      {Port: -1},
		"the image kindest/node:v1.36.1 is not of bert": {Image: "kindest/node:v1.36.1"},
	} {
		f := clustertest.New(t)
		c, _ := clusters(f)
		if _, err := c.Registry().Start(t.Context(), o); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), want) || f.Network || len(f.Nodes) > 0 {
			t.Errorf("%v; want %s; network %v, %v", err, want, f.Network, f.Nodes)
		}
	}
}

const mirrorFile = ":/etc/berth/certs.d/berth-registry:5000/hosts.toml"

// TestLostRequest: a request without an answer does not use up the time to wait for a registry.
func TestLostRequest(t *testing.T) {
	f := clustertest.New(t)
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			<-r.Context().Done()
		}
	}))
	t.Cleanup(server.Close)
	f.RegistryPort = int(netip.MustParseAddrPort(strings.TrimPrefix(server.URL, "http://")).Port())
	c, _ := clusters(f)
	if _, err := c.Registry().Start(t.Context(), registry.Options{}); err != nil || asked.Load() < 2 {
		t.Errorf("%v after %d requests", err, asked.Load())
	}
}

// TestRegistryOfACluster: nodes have the mirror from the start, the cluster publishes the registry,
// and the registry stays when the cluster is deleted.
func TestRegistryOfACluster(t *testing.T) {
	f := clustertest.New(t)
	withRegistry(t, f)
	c, steps := clusters(f)
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, twoWorkers+"registry: {enabled: true, port: 0}\n")}); err != nil {
		t.Fatal(err)
	}
	s, err := c.Registry().Status(t.Context())
	if err != nil || !s.Running || s.Image != config.DefaultImage || !strings.HasPrefix(s.Address, "localhost:") {
		t.Fatalf("%+v, %v", s, err)
	}
	for _, host := range []string{s.Address, strings.Replace(s.Address, "localhost", "127.0.0.1", 1), "berth-registry:5000"} {
		for _, node := range []string{"dev-control-plane", "dev-worker", "dev-worker2"} {
			if got := f.Files[node+":/etc/berth/certs.d/"+host+"/hosts.toml"]; got != "server = \"http://berth-registry:5000\"\n" {
				t.Errorf("%s has %q for %s", node, got, host)
			}
		}
	}
	if text := f.Files["dev-control-plane:applied"]; !strings.Contains(text, "local-registry-hosting") || !strings.Contains(text, `host: "`+s.Address+`"`) {
		t.Errorf("applied was\n%s", text)
	}
	if all, err := inventory.Clusters(t.Context(), c.Provider); err != nil || len(all) != 1 || all[0].Nodes != 3 {
		t.Errorf("clusters %+v, %v", all, err)
	}
	if !strings.Contains(strings.Join(*steps, ","), "Starting the registry,Creating nodes") {
		t.Errorf("steps %q", *steps)
	}
	if _, err := c.Delete(t.Context(), "dev"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Registry().Status(t.Context()); err != nil {
		t.Errorf("it went with the cluster: %v", err)
	}
	for i, want := range []bool{true, false} {
		if found, err := c.Registry().Delete(t.Context()); err != nil || found != want {
			t.Errorf("delete %d: %v, %v", i, found, err)
		}
	}
	if len(f.Nodes) > 0 {
		t.Errorf("left: %v", f.Nodes)
	}
}

// TestRegistryForClustersThatExist: existing clusters get the mirror of a registry that starts
// later. A cluster that is created while a registry exists has its mirror by default.
func TestRegistryForClustersThatExist(t *testing.T) {
	f := clustertest.New(t)
	port := withRegistry(t, f)
	c, _ := clusters(f)
	if _, err := c.Registry().Status(t.Context()); !errors.Is(err, errs.NotFound) {
		t.Errorf("none yet: %v", err)
	}
	if err := c.Registry().Stop(t.Context()); !errors.Is(err, errs.NotFound) {
		t.Errorf("none to stop: %v", err)
	}
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, twoWorkers)}); err != nil {
		t.Fatal(err)
	}
	if f.Files["dev-worker"+mirrorFile] != "" {
		t.Error("a mirror of a registry that is none")
	}
	for range 2 {
		if _, err := c.Registry().Start(t.Context(), registry.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	if f.Files["dev-worker"+mirrorFile] == "" || !strings.Contains(f.Files["dev-control-plane:applied"], "local-registry-hosting") {
		t.Errorf("nobody was told: %v", f.Files)
	}
	if _, err := c.Registry().Start(t.Context(), registry.Options{Port: port + 1}); !errors.Is(err, errs.Exists) || !strings.Contains(err.Error(), "registry delete") {
		t.Errorf("at another port: %v", err)
	}
	other := clustertest.Describe(t, "")
	other.Name = "other"
	f.Joined = nil
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: other}); err != nil || f.Files["other-control-plane"+mirrorFile] == "" {
		t.Errorf("a cluster beside it: %v", err)
	}
	if err := c.Registry().Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if s, err := c.Registry().Status(t.Context()); err != nil || s.Running {
		t.Errorf("stopped: %+v, %v", s, err)
	}
	if s, err := c.Registry().Start(t.Context(), registry.Options{}); err != nil || !s.Running {
		t.Errorf("started again: %+v, %v", s, err)
	}
}

// TestRegistryIsUndone: if create fails, it removes a registry that it has created, and no other.
func TestRegistryIsUndone(t *testing.T) {
	for _, before := range []bool{false, true} {
		f := clustertest.New(t)
		withRegistry(t, f)
		c, _ := clusters(f)
		if before {
			if _, err := c.Registry().Start(t.Context(), registry.Options{}); err != nil {
				t.Fatal(err)
			}
		}
		f.FailOn = "kubeadm init"
		if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, "registry: {enabled: true, port: 0}\n")}); !errors.Is(err, clustertest.ErrFake) {
			t.Fatal(err)
		}
		if _, err := c.Registry().Status(t.Context()); (err == nil) != before {
			t.Errorf("there before: %v; after: %v", before, err)
		}
		if f.Network != before {
			t.Errorf("there before: %v; a network after: %v", before, f.Network)
		}
	}
}

// TestSharedThingsStay: if create fails, the registry and the network that it has created stay where
// another cluster uses them, or another process is about to.
func TestSharedThingsStay(t *testing.T) {
	for _, creating := range []bool{true, false} {
		f := clustertest.New(t)
		withRegistry(t, f)
		c, steps := clusters(f)
		held := 0
		c.ShareCreation = func(context.Context) (func(), error) {
			held++
			return func() { held-- }, nil
		}
		c.OwnCreation = func() (func(), error) {
			if held > 0 {
				t.Error("it locks itself out")
			}
			if creating {
				return nil, errs.State
			}
			return func() {}, nil
		}
		if !creating {
			other := clustertest.Describe(t, "")
			other.Name = "other"
			if _, err := c.Create(t.Context(), CreateOptions{Cluster: other}); err != nil {
				t.Fatal(err)
			}
		}
		f.FailOn = "kubeadm init"
		if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, "registry: {enabled: true, port: 0}\n")}); !errors.Is(err, clustertest.ErrFake) {
			t.Fatal(err)
		}
		if _, err := c.Registry().Status(t.Context()); err != nil || !f.Network || len(f.Removed) > 0 {
			t.Errorf("another process creates a cluster %v: %v, network %v, removed %v", creating, err, f.Network, f.Removed)
		}
		if text := strings.Join(*steps, "\n"); !strings.Contains(text, "berth cluster registry delete") {
			t.Errorf("another process creates a cluster %v: %s", creating, text)
		}
		if left, err := c.Provider.List(t.Context(), "dev"); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", inventory.Names(left), err)
		}
	}
}

// portless reports no ports of stopped containers, as nerdctl does.
type portless struct{ *clustertest.Fake }

func (f portless) List(ctx context.Context, cluster string) ([]provider.Node, error) {
	all, err := f.Fake.List(ctx, cluster)
	for i := range all {
		if !all[i].Running {
			all[i].Ports = nil
		}
	}
	return all, err
}

// TestRegistryOfUnknownPort: a stopped registry that an older berth has created with nerdctl starts at
// its port. Nodes that are created before get no mirrors of it.
func TestRegistryOfUnknownPort(t *testing.T) {
	f := clustertest.New(t)
	port := withRegistry(t, f)
	c, _ := clusters(f)
	c.Provider = portless{f}
	for _, do := range []func() error{
		func() error { _, err := c.Registry().Start(t.Context(), registry.Options{}); return err },
		func() error { return c.Registry().Stop(t.Context()) },
		func() error {
			_, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, "")})
			return err
		},
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	for name := range f.Files {
		if strings.Contains(name, "certs.d") {
			t.Errorf("a mirror of a registry of unknown port: %s", name)
		}
	}
	if _, err := c.Registry().Start(t.Context(), registry.Options{Port: port + 1}); !errors.Is(err, errs.Exists) || !strings.Contains(err.Error(), strconv.Itoa(port)) {
		t.Errorf("at another port: %v", err)
	}
	if err := c.Registry().Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s, err := c.Registry().Start(t.Context(), registry.Options{Port: port}); err != nil || !s.Running {
		t.Errorf("%+v, %v", s, err)
	}
	if f.Files["dev-control-plane"+mirrorFile] == "" {
		t.Error("the start has not configured the node")
	}
}

func TestPlanOfARegistry(t *testing.T) {
	r := plan.Registry("i", 5001)
	if r.Privileged || r.Ports[0].Listen != "127.0.0.1" || len(r.Volumes) != 1 || r.Labels[plan.LabelCluster] != plan.RegistryGroup {
		t.Errorf("%+v", r)
	}
}

// TestNewNodesHaveTheRegistry: nodes that are added later have the mirror, and so have nodes whose
// mirrors change.
func TestNewNodesHaveTheRegistry(t *testing.T) {
	f := clustertest.New(t)
	withRegistry(t, f)
	c := create(t, f, twoWorkers+"registry: {enabled: true, port: 0}\n")
	if err := c.AddNodes(t.Context(), "dev", config.Addition{Count: 1}, ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := f.Files["dev-worker3"+mirrorFile]; got != "server = \"http://berth-registry:5000\"\n" {
		t.Errorf("a new node has %q", got)
	}
	delete(f.Files, "dev-worker"+mirrorFile)
	if err := c.Apply(t.Context(), clustertest.Describe(t, twoWorkers+"registry: {enabled: true, port: 0}\nregistries: [{host: r.example, skipVerify: true}]\n"), ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := f.Files["dev-worker"+mirrorFile]; got != "server = \"http://berth-registry:5000\"\n" {
		t.Errorf("a node with other mirrors has %q", got)
	}
}

// TestEachThingIsUndone: each call fails in turn. Objects that this run created are removed.
// Existing objects stay.
func TestEachThingIsUndone(t *testing.T) {
	const text = twoWorkers + "registry: {enabled: true, port: 0}\n"
	for _, there := range []string{"nothing", "the network", "the registry"} {
		for at, done := 1, false; !done; at++ {
			f := clustertest.New(t)
			withRegistry(t, f)
			c, _ := clusters(f)
			f.Network = there == "the network"
			if there == "the registry" {
				if _, err := c.Registry().Start(t.Context(), registry.Options{}); err != nil {
					t.Fatal(err)
				}
			}
			f.Calls, f.Removed, f.FailAt = 0, nil, at
			_, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, text)})
			if done = err == nil; done {
				break
			}
			stays := there == "the registry"
			if got := len(f.Nodes) == 1 && f.Nodes[0].Name == plan.RegistryName; got != stays || len(f.Nodes) > 1 {
				t.Errorf("%s was there, call %d (%v): left are %v", there, at, err, inventory.Names(f.Nodes))
			}
			if there == "nothing" && f.Network || there != "nothing" && len(f.Removed) > 0 {
				t.Errorf("%s was there, call %d (%v): a network %v, removed %q", there, at, err, f.Network, f.Removed)
			}
		}
	}
}

// TestOldRegistry: a registry that accepts pushes from every pod causes a warning.
func TestOldRegistry(t *testing.T) {
	for header, warned := range map[string]bool{"": true, "host": false} {
		f := clustertest.New(t)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if header != "" {
				w.Header().Set("Berth-Registry-Writers", header)
			}
		}))
		t.Cleanup(server.Close)
		f.RegistryPort = int(netip.MustParseAddrPort(strings.TrimPrefix(server.URL, "http://")).Port())
		c, steps := clusters(f)
		if _, err := c.Registry().Start(t.Context(), registry.Options{}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(strings.Join(*steps, "\n"), "takes images from every pod"); got != warned {
			t.Errorf("header %q: %q", header, *steps)
		}
	}
}
