// Package berth creates nodes with the `berth serve` of this host, as a client of its CRI socket
// and of berth's own service: it needs no other container engine. It implements provider.Provider.
//
// A node is a pod of one privileged container, in which systemd is process 1. Annotations request
// what CRI has no fields for: tmpfs mounts, volumes, an address, and a storage in which the node's
// files outlive its container. A pod does not restart by itself, and its container starts only
// once. So each start of a node creates both again, with the same storage, address and ports.
//
// A directory for each node (record.go) has its record. It is created first and removed last. So
// nodes survive a reboot, after which the runtime knows only that there were pods.
//
// The order of steps, as one node goes through them:
//
//	register    record, with an address that nobody has (record.go, addresses.go)
//	run         pod and container, whose requests follow from the record (run.go, request.go)
//	hosts       the names of all nodes of the cluster and of the registry, in all of them (hosts.go)
//	ready       systemd is up, as its log says (ready.go)
//	Stop        the container gets systemd's signal, then the pod stops (nodes.go)
//	Delete      pod and container, then the directory (nodes.go)
//	Down, Up    the host goes down, and boots (boot.go)
package berth

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/provider/hostcheck"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
)

// Name is its name for --provider.
const Name = "berth"

// Options say how to find the runtime.
type Options struct {
	// Env is the environment of the process; BERTH_ENDPOINT in it names the socket.
	Env map[string]string
	// Dir has a directory for each node; "" is the daemon's root with the suffix "-cluster".
	Dir string
	// Host is the root of this host's file system; nil is that of the process.
	Host fs.FS
	// Trace receives each call; nil for none.
	Trace func(tool string, args []string)
}

// Provider is a running berth.
type Provider struct {
	conn  *criclient.Conn
	facts provider.Facts
	env   map[string]string
	host  fs.FS
	dir   string
	trace func(tool string, args []string)
}

var _ provider.Provider = (*Provider)(nil)

// Endpoint is the socket that an environment names.
func Endpoint(env map[string]string) string {
	return cmp.Or(env["BERTH_ENDPOINT"], criclient.DefaultEndpoint)
}

// Open connects to the daemon and reads its facts. The error is errs.Unavailable if no daemon
// answers, and errs.Unsupported if another runtime does. The connection lasts as long as the
// process.
func Open(ctx context.Context, o Options) (*Provider, error) {
	conn, err := criclient.Dial(ctx, Endpoint(o.Env))
	if err != nil {
		return nil, err
	}
	e := &Provider{conn: conn, env: o.Env, host: o.Host, dir: o.Dir, trace: o.Trace}
	if e.host == nil {
		e.host = os.DirFS("/")
	}
	if err := e.readFacts(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return e, nil
}

// readFacts fills in what the daemon reports about itself.
func (e *Provider) readFacts(ctx context.Context) error {
	version, err := e.conn.Runtime.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return fmt.Errorf("cannot read the version of the runtime at %s: %w", e.conn.Endpoint, err)
	}
	if version.GetRuntimeName() != Name {
		return fmt.Errorf("the runtime at %s is %s, not berth; name berth's socket with BERTH_ENDPOINT: %w", e.conn.Endpoint, version.GetRuntimeName(), errs.Unsupported)
	}
	e.facts = provider.Facts{Version: version.GetRuntimeVersion(), Memory: true, Pids: true, CPU: true, Driver: "overlay"}
	_, err = fs.Stat(e.host, "sys/fs/cgroup/cgroup.controllers")
	e.facts.CgroupV2 = err == nil
	if e.dir != "" {
		return nil
	}
	status, err := e.conn.Runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return fmt.Errorf("cannot read the status of berth at %s: %w", e.conn.Endpoint, err)
	}
	var config struct{ Root string }
	if err := json.Unmarshal([]byte(status.GetInfo()["config"]), &config); err != nil || !filepath.IsAbs(config.Root) {
		return fmt.Errorf("berth at %s does not report its root directory, beside which nodes are stored: %w", e.conn.Endpoint, errs.Unsupported)
	}
	e.dir, e.facts.Root = config.Root+"-cluster", config.Root
	return nil
}

// Name is plan.Host.Engine.
func (e *Provider) Name() string { return Name }

// Facts are those of Open.
func (e *Provider) Facts() provider.Facts { return e.facts }

// Check returns what the host lacks. The network is looked at by EnsureNetwork.
func (e *Provider) Check(nodes int) []hostcheck.UnmetRequirement {
	host := hostcheck.Host{Root: e.host}
	found := append(hostcheck.Check(host, nodes), e.reboot(host)...)
	if !e.facts.CgroupV2 {
		found = append(found, hostcheck.ClassicCgroups())
	}
	return found
}

// reboot tells that nobody starts nodes when the host boots. The unit asks the usual socket
// unless it is told another.
func (e *Provider) reboot(host hostcheck.Host) []hostcheck.UnmetRequirement {
	found := host.Reboot(BootUnit, "enable --now")
	if endpoint := Endpoint(e.env); endpoint != criclient.DefaultEndpoint {
		dir := "/etc/systemd/system/" + BootUnit + ".d"
		for i := range found {
			found[i].Fix = fmt.Sprintf("mkdir -p %s\nprintf '[Service]\\nEnvironment=BERTH_ENDPOINT=%s\\n' > %s/endpoint.conf\n%s", dir, endpoint, dir, found[i].Fix)
		}
	}
	return found
}

// PlanHost returns the facts of network and environment for a plan.
func (e *Provider) PlanHost(n provider.Network) plan.Host {
	h := plan.Host{Engine: Name, Network: n.Name, Env: maps.Clone(e.env), Routes: provider.Routes(e.host)}
	for _, subnet := range n.Subnets {
		h.Subnets = append(h.Subnets, subnet.String())
	}
	if h.Env == nil {
		h.Env = map[string]string{}
	}
	return h
}

// Describe writes the state of a node, or for "" of the daemon, as JSON.
func (e *Provider) Describe(ctx context.Context, name string, to io.Writer) error {
	described := map[string]any{}
	if name == "" {
		status, err := e.conn.Runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
		if err != nil {
			return fmt.Errorf("cannot describe berth at %s: %w", e.conn.Endpoint, err)
		}
		described["version"], described["status"], described["info"] = e.facts.Version, status.GetStatus(), values(status.GetInfo())
		return encode(to, described)
	}
	r, err := e.read(name)
	if err != nil {
		return err
	}
	for variable := range r.Spec.Env {
		if strings.HasSuffix(strings.ToLower(variable), "_proxy") {
			r.Spec.Env[variable] = "[hidden]" // it may have a password
		}
	}
	described["node"] = r
	found, err := e.find(ctx, r)
	if err != nil {
		return err
	}
	if found.sandbox != nil {
		status, err := e.conn.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: found.sandbox.GetId(), Verbose: true})
		if errs.IgnoreNotFound(err) != nil {
			return fmt.Errorf("cannot describe %s: %w", name, err)
		}
		described["pod"], described["podInfo"] = status.GetStatus(), values(status.GetInfo())
	}
	if found.container != nil {
		status, err := e.conn.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: found.container.GetId(), Verbose: true})
		if errs.IgnoreNotFound(err) != nil {
			return fmt.Errorf("cannot describe %s: %w", name, err)
		}
		described["container"], described["containerInfo"] = status.GetStatus(), values(status.GetInfo())
	}
	return encode(to, described)
}

// values are verbose values, each of which is JSON.
func values(info map[string]string) map[string]any {
	all := map[string]any{}
	for name, text := range info {
		all[name] = text
		if json.Valid([]byte(text)) {
			all[name] = json.RawMessage(text)
		}
	}
	return all
}

func encode(to io.Writer, v any) error {
	encoder := json.NewEncoder(to)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// traceCall reports a call.
func (e *Provider) traceCall(words ...string) {
	if e.trace != nil {
		e.trace(Name, words)
	}
}
