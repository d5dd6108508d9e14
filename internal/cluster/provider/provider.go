// Package provider creates containers that are nodes. CLI implements Provider for command-line
// tools like docker's, with a table of the differences between them; package berth has another
// implementation, which needs no such tool. The package knows containers, networks and images; it
// must not know what Kubernetes does in them.
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

// Labels in addition to those of the plan. All objects that berth creates have them: containers,
// volumes, networks.
const (
	// LabelAttempt differs for each Create. It finds the objects of a failed Create.
	LabelAttempt = "run.berth.attempt"
	// LabelAddresses are a container's own addresses, comma separated, which engines do not report
	// for stopped containers.
	LabelAddresses = "run.berth.addresses"
	// LabelNode is the name of a volume's container.
	LabelNode = "run.berth.node"
	// LabelNetwork is "true" on a network that berth created.
	LabelNetwork = "run.berth.network"
	// LabelPool is "true" on a network whose IPv4 subnet is one of the engine's own pools.
	LabelPool = "run.berth.pool"
	// LabelOn is the name of the network that a container was created on. It finds the network when
	// the cluster is deleted.
	LabelOn = "run.berth.on"
	// LabelAPI is the address and port of the host that lead to the API of Kubernetes, as
	// planned; a port of 0 is one that the engine picks. A container without it has none.
	LabelAPI = "run.berth.api"
	// LabelRegistry is the same for the registry.
	LabelRegistry = "run.berth.registry"
)

// Provider creates and manages nodes, and has their images. All methods may be called at the same
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

	// EnsureNetwork finds the network or creates it. Two calls at once create one.
	EnsureNetwork(ctx context.Context, name string) (Network, error)
	// RemoveNetwork removes a network that berth created and no container is on, and leaves any
	// other. An absent one is not an error.
	RemoveNetwork(ctx context.Context, name string) error

	// Create creates containers, and returns when systemd is up in those that are nodes. If one
	// fails, it removes all, unless Retain. errs.Exists: a name is taken.
	Create(ctx context.Context, r Request) error
	// List is the containers of a cluster, running or not, sorted by name; of all
	// clusters for "".
	List(ctx context.Context, cluster string) ([]Node, error)
	// Start starts containers and waits for systemd, Stop stops them; both do nothing to
	// one that is as wanted.
	Start(ctx context.Context, names ...string) error
	Stop(ctx context.Context, names ...string) error
	// Delete removes containers and what Create created for them. An absent one is not an error.
	Delete(ctx context.Context, names ...string) error
	// Release stops containers and removes them as Delete does, but for their volumes: a Create
	// with Spec.Reuse gives these to containers of the same names. An absent one is no error.
	Release(ctx context.Context, names ...string) error
	// DeleteCluster removes all objects with the label of the cluster, also those of a killed
	// Create.
	DeleteCluster(ctx context.Context, cluster string) error

	// Exec runs a command in a running container, with all privileges of it.
	Exec(ctx context.Context, name string, c Command) error
	// Logs copies what the container's first process has written so far.
	Logs(ctx context.Context, name string, to io.Writer) error
	// Describe writes what the engine reports about itself, or about a container, for people.
	Describe(ctx context.Context, name string, to io.Writer) error
}

// Images is the engine's store of images.
type Images interface {
	// Ensure pulls a missing image. out gets the progress; nil for none.
	Ensure(ctx context.Context, image string, out io.Writer) (pulled bool, err error)
	// Present returns an image; it has no ID if the engine does not have it.
	Present(ctx context.Context, image string) (Image, error)
	// Save writes an archive of present images, in docker's format.
	Save(ctx context.Context, to io.Writer, images ...string) error
	// Load loads the images of an archive in the format of docker save.
	Load(ctx context.Context, from io.Reader) error
}

// Image is an image of an engine.
type Image struct {
	// ID is the digest of its configuration, without the algorithm.
	ID     string
	Labels map[string]string
}

// Facts are the properties of an engine.
type Facts struct {
	Version string
	// Remote: the engine runs on another host, whose ports are not ours to pick.
	Remote bool
	// Rootless: the engine runs as a user.
	Rootless bool
	// UserRemap: containers are in a user namespace by default.
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
	// Made: EnsureNetwork created it.
	Made bool
}

// Spec is a container to create.
type Spec struct {
	plan.Container
	// Command replaces the image's command. nil is a node: Create waits for its systemd.
	Command []string
	// Reuse: the container gets the volumes that a Release left, if there are any, and they stay if
	// it cannot be created. Without it they are removed.
	Reuse bool `json:"-"`
}

// Request is the input of Create.
type Request struct {
	Network Network
	Specs   []Spec
	// Retain: nothing is removed when something fails.
	Retain bool
	// Wait is how long systemd of a node may take. 0 is DefaultWait.
	Wait time.Duration
	// Done is called for each container that is up; nil for none.
	Done func(name string)
}

// Labels are those of a container: the plan's, and those that are known at its creation. Every
// Provider sets them.
func (r Request) Labels(s Spec) map[string]string {
	labels := map[string]string{LabelOn: r.Network.Name}
	maps.Copy(labels, s.Labels)
	for _, p := range s.Ports {
		label := ""
		switch {
		case p.IsAPI():
			label = LabelAPI
		case s.Role == plan.RegistryRole:
			label = LabelRegistry
		default:
			continue
		}
		labels[label] = net.JoinHostPort(p.Listen, strconv.Itoa(max(p.Host, 0)))
	}
	return labels
}

// DefaultWait is twice kind's: many nodes start at once on small machines.
const DefaultWait = time.Minute

// Node is a container that exists.
type Node struct {
	Name   string            `json:"name"`
	ID     string            `json:"id"`
	Image  string            `json:"image"`
	Labels map[string]string `json:"labels"`
	// State is the engine's term: created, running, exited and others.
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
	// Files are written before the command begins, whose standard input is empty then; missing
	// directories are created. Without Args only files are written.
	Files []File
	Args  []string
	// Env is added to the container's.
	Env            map[string]string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Raw: standard output is binary, or has secrets. Errors do not quote it.
	Raw bool
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
