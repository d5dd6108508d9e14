// Package provider makes containers that are nodes. CLI is the one implementation for
// command-line tools like docker's, with a table of the differences between them; package
// berth has another implementation of Provider, which needs no such tool. It knows containers, networks
// and images; what Kubernetes does in them it must not know.
//
// The order of steps, as `berth cluster create` goes through them:
//
//	Find                which tool; its version and what it is (detect.go, facts.go)
//	Check               what the host or the engine lacks, with the fix (facts.go)
//	Images.Ensure       images of all nodes (images.go)
//	EnsureNetwork       the network, IPv6 where there is any (network.go)
//	PlanHost            what the plan needs to know of all that (proxies.go)
//	Create              free names, addresses, volumes, containers, systemd (create.go)
//	Exec                Kubernetes is set up (exec.go)
//	List                what there is, at any later time (nodes.go)
//	Stop, Start         all of it stays (nodes.go)
//	Delete              containers and their volumes (nodes.go)
//	RemoveNetwork       when nobody uses it any more (network.go)
package provider

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider/hostcheck"
)

// Labels beside those of the plan. Whatever berth makes has them: containers, volumes,
// networks.
const (
	// LabelAttempt is another one for each Create: what a failed one made is found by it.
	LabelAttempt = "run.berth.attempt"
	// LabelAddresses are a container's own addresses, comma separated, which engines do
	// not tell of containers that are stopped.
	LabelAddresses = "run.berth.addresses"
	// LabelNode is the name of the container that a volume is of.
	LabelNode = "run.berth.node"
	// LabelNetwork is "true" on a network that berth made.
	LabelNetwork = "run.berth.network"
	// LabelOn is the name of the network that a container was made on, by which the network
	// is found when the cluster goes.
	LabelOn = "run.berth.on"
	// LabelAPI is the address and port of the host that lead to the API of Kubernetes, as
	// planned; a port of 0 is one that the engine picks. A container without it has none.
	LabelAPI = "run.berth.api"
)

// Provider makes and keeps nodes, and has their images. All methods may be called at the same
// time. Each ends when its context does, and then returns the context's error.
type Provider interface {
	Images

	// Name is podman, docker, nerdctl or berth: plan.Host.Engine.
	Name() string
	// Facts are those that Open found.
	Facts() Facts
	// Check tells what stands against that many nodes, fatal findings first. It is
	// for create; what exists can be listed and deleted all the same.
	Check(nodes int) []hostcheck.UnmetRequirement
	// PlanHost is what a plan needs to know of engine, network and environment.
	PlanHost(n Network) plan.Host

	// EnsureNetwork finds the network or makes it. Two calls at once make one.
	EnsureNetwork(ctx context.Context, name string) (Network, error)
	// RemoveNetwork removes a network that berth made and no container is on, and
	// leaves any other. An absent one is no error.
	RemoveNetwork(ctx context.Context, name string) error

	// Create makes containers, and returns when systemd is up in those that are nodes.
	// Where one cannot be made none stays, unless Retain. errs.Exists: a name is taken.
	Create(ctx context.Context, r Request) error
	// List is the containers of a cluster, running or not, sorted by name; of all
	// clusters for "".
	List(ctx context.Context, cluster string) ([]Node, error)
	// Start starts containers and waits for systemd, Stop stops them; both do nothing to
	// one that is as wanted.
	Start(ctx context.Context, names ...string) error
	Stop(ctx context.Context, names ...string) error
	// Delete removes containers and what Create made for them. An absent one is no error.
	Delete(ctx context.Context, names ...string) error
	// Release stops containers and removes them as Delete does, but for their volumes: a Create
	// with Spec.Reuse gives these to containers of the same names. An absent one is no error.
	Release(ctx context.Context, names ...string) error
	// DeleteCluster removes all that has the label of the cluster, also what a Create that
	// was killed left.
	DeleteCluster(ctx context.Context, cluster string) error

	// Exec runs a command in a running container, with all privileges of it.
	Exec(ctx context.Context, name string, c Command) error
	// Logs copies what the container's first process has written so far.
	Logs(ctx context.Context, name string, to io.Writer) error
	// Describe writes what the engine says of itself, or of a container, for people.
	Describe(ctx context.Context, name string, to io.Writer) error
}

// Images is the engine's store of images.
type Images interface {
	// Ensure pulls an image that is not there. out gets the progress; nil is nobody.
	Ensure(ctx context.Context, image string, out io.Writer) (pulled bool, err error)
	// Present tells of an image; it has no ID where the engine does not have it.
	Present(ctx context.Context, image string) (Image, error)
	// Save writes an archive, as docker does, of images that are there.
	Save(ctx context.Context, to io.Writer, images ...string) error
	// Load takes the images of an archive as docker's save writes it.
	Load(ctx context.Context, from io.Reader) error
}

// Image is one that an engine has.
type Image struct {
	// ID is the digest of its configuration, without the algorithm.
	ID     string
	Labels map[string]string
}

// Facts are what an engine is.
type Facts struct {
	Version string
	// Remote: the engine runs on another host, whose ports are not ours to pick.
	Remote bool
	// Rootless: the engine runs as a user.
	Rootless bool
	// UserRemap: containers are in a user namespace unless told otherwise.
	UserRemap bool
	CgroupV2  bool
	// Loopback6: ports of ::1 lead into containers.
	Loopback6 bool
	// ChosenLinks: a container has another link address at each start unless one is chosen.
	ChosenLinks bool
	// Memory, Pids and CPU: limits of that kind work.
	Memory, Pids, CPU bool
	// Driver stores images, Filesystem is what it is on; "" is unknown.
	Driver, Filesystem string
	// Root is the directory of images and volumes on the engine's host; "" is unknown.
	Root string
}

// Network is a network of the engine.
type Network struct {
	Name    string
	Subnets []netip.Prefix
	// Stable: containers may have addresses that stay theirs, of the families given.
	StableV4, StableV6 bool
	// Made: EnsureNetwork made it.
	Made bool
}

// Spec is a container that is wanted.
type Spec struct {
	plan.Container
	// Command stands in place of what the image runs. nil is a node, whose systemd is
	// waited for.
	Command []string
	// Reuse: the container gets the volumes that a Release left, where there are any, and they
	// stay when it cannot be made. Without it they are removed.
	Reuse bool `json:"-"`
}

// Request is what Create makes.
type Request struct {
	Network Network
	Specs   []Spec
	// Retain: what was made stays when something fails.
	Retain bool
	// Wait is how long systemd of a node may take. 0 is DefaultWait.
	Wait time.Duration
	// Done is told of each container that is up; nil is nobody.
	Done func(name string)
}

// Labels are those of a container: what the plan says, and what is known when it is made.
// Every Provider gives them.
func (r Request) Labels(s Spec) map[string]string {
	labels := map[string]string{LabelOn: r.Network.Name}
	maps.Copy(labels, s.Labels)
	for _, p := range s.Ports {
		if p.IsAPI() {
			labels[LabelAPI] = net.JoinHostPort(p.Listen, strconv.Itoa(max(p.Host, 0)))
		}
	}
	return labels
}

// DefaultWait is kind's, twice: many nodes start at once on small machines.
const DefaultWait = time.Minute

// Node is a container that exists.
type Node struct {
	Name   string            `json:"name"`
	ID     string            `json:"id"`
	Image  string            `json:"image"`
	Labels map[string]string `json:"labels"`
	// State is the engine's word: created, running, exited and others.
	State   string `json:"state"`
	Running bool   `json:"running"`
	// ExitCode is that of the last run.
	ExitCode int `json:"exitCode"`
	// IPv4 and IPv6 are the addresses it has, or will have when it runs again where they
	// are stable. The zero value is none.
	IPv4 netip.Addr `json:"ipv4"`
	IPv6 netip.Addr `json:"ipv6"`
	// Ports are those of the host that lead to it.
	Ports []plan.Port `json:"ports"`

	// started is when the last run began, in the engine's format.
	started string
}

// Command is a command in a container.
type Command struct {
	// Files are written before the command begins, whose standard input is empty then;
	// directories above are made. Without Args that is all.
	Files []File
	Args  []string
	// Env is added to the container's.
	Env            map[string]string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// File is a file to be written in a container.
type File struct {
	Path    string
	Mode    int64 // 0 is 0644
	Content []byte
}

// Output runs a command in a container and returns its standard output without the space around it.
func Output(ctx context.Context, p Provider, name string, args ...string) (string, error) {
	var out bytes.Buffer
	err := p.Exec(ctx, name, Command{Args: args, Stdout: &out})
	return strings.TrimSpace(out.String()), err
}
