// Package clustertest has a provider in memory for tests of cluster operations.
package clustertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/nodeimage"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/provider/hostcheck"
	"github.com/berthrun/berth/internal/cluster/report"
	"github.com/berthrun/berth/internal/errs"
)

// Fake is a provider in memory. Its nodes answer the commands that create a cluster, and its API
// server has the nodes that have joined.
type Fake struct {
	T *testing.T
	// API is the API server of the cluster.
	API *httptest.Server

	// Mu guards all fields below while calls are under way.
	Mu      sync.Mutex
	Nodes   []provider.Node
	Network bool
	// Removed are the networks of calls to RemoveNetwork.
	Removed []string
	// Subnets are those of the network, Routes the host's.
	Subnets, Routes []netip.Prefix
	Joined          []string
	Files           map[string]string // node:path
	// Has is what a node reports about its images, by its name; none is "[]".
	Has map[string]string
	// Kind are nodes with an image of kindest/node, by name.
	Kind map[string]bool
	// Saved is the archive that Save writes, IDs are those of its images.
	Saved []byte
	IDs   map[string]string
	Ran   []string // node: command
	Calls int
	// FailAt is the number of the call that fails; 0 is none.
	FailAt int
	// FailOn is how a command in a node begins that fails; "" is none.
	FailOn string
	// Retained is how many containers of a failed Create with Retain stay.
	Retained int
	// FailOnce is the same for a command that fails only the first time, and has no effect.
	FailOnce string
	// NotReady is a node that never becomes Ready; "" for none.
	NotReady string
	// Unreachable: the ports of the host that lead to the API and to the registry are closed.
	Unreachable bool
	// Behind is how late the clock of the nodes is.
	Behind time.Duration
	// Heartbeats are when nodes last reported their conditions, by name; the others report all the time.
	Heartbeats map[string]time.Time
	Unmet      []hostcheck.UnmetRequirement
	// RegistryPort is where a registry answers.
	RegistryPort int
	// FakeFacts are what Facts returns.
	FakeFacts provider.Facts
	// Unstable: containers have no stable addresses.
	Unstable bool
	// Etcd are the members of etcd, Balanced is the last configuration of the load balancer, Config
	// a ConfigMap, and Changed are the requests that changed the API.
	Etcd     []string
	Balanced string
	Config   string
	// CoreDNS is the ConfigMap of the cluster's DNS; "" for none.
	CoreDNS string
	// Hidden: the API lists no nodes, and calls this for a request of the list.
	Hidden func()
	// Signed are the signatures of the ConfigMap cluster-info.
	Signed string
	// Tokens are the Secrets that were created.
	Tokens  []string
	Changed []string
	// next is the last byte of the next address.
	next byte
	// Versions are the Kubernetes versions of images, v1.36.3 for others; "none" is an image that
	// is neither berth's nor kind's.
	Versions map[string]string
	// Volumes are those of nodes, each with a number of its own; Env is the caller's environment.
	Volumes map[string]int
	Made    int
	// Waits runs in kubeadm init; nil for nothing. Parts are the answers to the checks for crashes,
	// of which the last one repeats; Asks counts the checks. CrashLog is the log that has
	// CrashText.
	Waits               func(context.Context) error
	Parts               []string
	Asks                int
	CrashLog, CrashText string

	Env map[string]string
}

var _ provider.Provider = (*Fake)(nil)

// ErrFake is the error of a call or a command that should fail.
var ErrFake = errors.New("the engine has a bad day")

// New returns a provider without clusters.
func New(t *testing.T) *Fake {
	f := &Fake{T: t, Files: map[string]string{}, next: 2, Volumes: map[string]int{}}
	f.API = httptest.NewTLSServer(http.HandlerFunc(f.serve))
	t.Cleanup(f.API.Close)
	return f
}

// Say appends to steps.
func (f *Fake) Say(steps *[]string, text string) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	*steps = append(*steps, text)
}

// Reporter appends steps and warnings to a list.
func (f *Fake) Reporter() (r report.Reporter, steps *[]string) {
	steps = &[]string{}
	return report.Reporter{
		Step: func(text string) func(error) { f.Say(steps, text); return func(error) {} },
		Warn: func(text string) { f.Say(steps, "warning: "+text) },
	}, steps
}

// call counts a call that changes something.
func (f *Fake) call() error {
	f.Calls++
	if f.Calls == f.FailAt {
		return ErrFake
	}
	return nil
}

func (f *Fake) Name() string                           { return "podman" }
func (f *Fake) Facts() provider.Facts                  { return f.FakeFacts }
func (f *Fake) Check(int) []hostcheck.UnmetRequirement { return f.Unmet }
func (f *Fake) PlanHost(n provider.Network) plan.Host {
	return plan.Host{Engine: "podman", Network: n.Name, Routes: f.Routes, Env: f.Env}
}

func (f *Fake) EnsureNetwork(_ context.Context, name string) (provider.Network, error) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	if err := f.call(); err != nil {
		return provider.Network{}, err
	}
	made := !f.Network
	f.Network = true
	return provider.Network{Name: name, Subnets: f.Subnets, Made: made, StableV4: !f.Unstable}, nil
}

func (f *Fake) RemoveNetwork(_ context.Context, name string) error {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.Removed = append(f.Removed, name)
	f.Network = len(f.Nodes) > 0
	return nil
}

func (f *Fake) Create(_ context.Context, r provider.Request) error {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	failed := f.call()
	for i, spec := range r.Specs {
		if failed != nil && (!r.Retain || i >= f.Retained) {
			break
		}
		n := provider.Node{
			Name: spec.Name, Image: spec.Image, Labels: r.Labels(spec), Running: true, State: "running",
			IPv4: netip.AddrFrom4([4]byte{10, 89, 0, f.next}),
		}
		f.next++
		if !f.Unstable {
			n.Labels[provider.LabelAddresses] = n.IPv4.String()
		}
		if len(spec.Volumes) > 0 && (!spec.Reuse || f.Volumes[spec.Name] == 0) {
			f.Made++
			f.Volumes[spec.Name] = f.Made
		}
		if (spec.Command != nil) != (inventory.Role(n) == config.BalancerRole || inventory.Role(n) == plan.RegistryRole || inventory.Role(n) == inventory.TrialRole) {
			f.T.Errorf("%s runs %q", spec.Name, spec.Command)
		}
		for _, p := range spec.Ports {
			// With a load balancer, only the load balancer leads to the API.
			if p.Container == plan.APIPort && (inventory.Role(n) == config.BalancerRole || !strings.Contains(fmt.Sprint(r.Specs[0].Name), "balancer")) {
				p.Host = int(f.Address().Port())
				if f.Unreachable {
					p.Host = 1
				}
			}
			n.Ports = append(n.Ports, p)
		}
		if inventory.Role(n) == plan.RegistryRole {
			port := f.RegistryPort
			if f.Unreachable {
				port = 1
			}
			n.Ports = []plan.Port{{Listen: "127.0.0.1", Host: port, Container: plan.RegistryPort, Protocol: config.TCP}}
		}
		f.Nodes = append(f.Nodes, n)
	}
	slices.SortFunc(f.Nodes, func(a, b provider.Node) int { return strings.Compare(a.Name, b.Name) })
	return failed
}

// Address is where the API server listens.
func (f *Fake) Address() netip.AddrPort {
	return netip.MustParseAddrPort(strings.TrimPrefix(f.API.URL, "https://"))
}

func (f *Fake) List(_ context.Context, cluster string) ([]provider.Node, error) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	var found []provider.Node
	for _, n := range f.Nodes {
		if cluster == "" || n.Labels[plan.LabelCluster] == cluster {
			found = append(found, n)
		}
	}
	return found, nil
}

func (f *Fake) power(on bool, names []string) error {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	for i := range f.Nodes {
		for _, name := range names {
			if f.Nodes[i].Name == name {
				f.Nodes[i].Running = on
			}
		}
	}
	return nil
}

func (f *Fake) Start(_ context.Context, names ...string) error { return f.power(true, names) }
func (f *Fake) Stop(_ context.Context, names ...string) error  { return f.power(false, names) }

func (f *Fake) Delete(ctx context.Context, names ...string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.Nodes = slices.DeleteFunc(f.Nodes, func(n provider.Node) bool { return slices.Contains(names, n.Name) })
	for _, name := range names {
		delete(f.Volumes, name)
	}
	return nil
}

func (f *Fake) Release(ctx context.Context, names ...string) error {
	f.Mu.Lock()
	kept := map[string]int{}
	for _, name := range names {
		kept[name] = f.Volumes[name]
	}
	f.Mu.Unlock()
	err := f.Delete(ctx, names...)
	f.Mu.Lock()
	defer f.Mu.Unlock()
	for name, volume := range kept {
		f.Volumes[name] = volume
	}
	return err
}

// image is that of a node.
func (f *Fake) image(name string) string {
	for _, n := range f.Nodes {
		if n.Name == name {
			return n.Image
		}
	}
	return ""
}

func (f *Fake) DeleteCluster(ctx context.Context, cluster string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	f.Mu.Lock()
	defer f.Mu.Unlock()
	var left []provider.Node
	for _, n := range f.Nodes {
		if n.Labels[plan.LabelCluster] != cluster {
			left = append(left, n)
		}
	}
	f.Nodes, f.Joined, f.Etcd, f.Config = left, nil, nil, ""
	return nil
}

func (f *Fake) Logs(_ context.Context, name string, to io.Writer) error {
	_, err := fmt.Fprintln(to, "log of", name)
	return err
}

func (f *Fake) Describe(_ context.Context, name string, to io.Writer) error {
	_, err := fmt.Fprintln(to, "this is", name, `"HTTPS_PROXY=http://me:geheim@proxy:3128"`)
	return err
}

func (f *Fake) Ensure(context.Context, string, io.Writer) (bool, error) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return false, f.call()
}

func (f *Fake) Present(_ context.Context, image string) (provider.Image, error) {
	found := provider.Image{ID: f.IDs[image]}
	if !strings.Contains(image, "kindest") {
		found.Labels = map[string]string{nodeimage.LabelBerth: "0.1.0"}
	}
	return found, nil
}

func (f *Fake) Save(_ context.Context, to io.Writer, images ...string) error {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.Ran = append(f.Ran, "save "+strings.Join(images, " "))
	_, err := to.Write(f.Saved)
	return err
}
func (f *Fake) Load(context.Context, io.Reader) error { return errs.Unsupported }
