package cluster

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/innode"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/kubeconfig"
	"github.com/berthrun/berth/internal/cluster/nodeimage"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/provider/hostcheck"
	"github.com/berthrun/berth/internal/cluster/report"
	"github.com/berthrun/berth/internal/errs"
)

// fake is an engine in memory whose nodes answer the commands that a cluster is made by,
// with an API server that tells of the nodes that have joined.
type fake struct {
	t   *testing.T
	api *httptest.Server

	mu      sync.Mutex
	nodes   []provider.Node
	network bool
	// removed are the networks that were to be removed.
	removed []string
	// subnets are those of the network, routes the host's.
	subnets, routes []netip.Prefix
	joined          []string
	files           map[string]string // node:path
	// has is what a node tells of its images; none is "[]".
	has map[string]string
	// kind are nodes with an image of kindest/node, by name.
	kind map[string]bool
	// saved is what the engine saves, ids are those of its images.
	saved []byte
	ids   map[string]string
	ran   []string // node: command
	calls int
	// fail makes a call fail; failAt is which, 0 is none.
	failAt int
	// failOn is how a command in a node begins that fails; "" is none.
	failOn string
	// retained is how many containers stay of a Create that fails, if they are to.
	retained int
	// failOnce is the same for a command that fails the first time only, and takes nothing.
	failOnce string
	// notReady: nodes never become Ready.
	notReady bool
	findings []hostcheck.Finding
	// registryPort is where a registry answers.
	registryPort int
	facts        provider.Facts
	// unstable: addresses are not the containers' own.
	unstable bool
	// members are etcd's, balanced what the load balancer was told last, config a ConfigMap and
	// changed what the API was asked to change.
	members  []string
	balanced string
	config   string
	// coredns is the ConfigMap of the cluster's DNS; "" is that there is none.
	coredns string
	// hidden: the API tells no nodes, and this is called when it is asked for them.
	hidden func()
	// signed are the signatures of what the cluster tells of itself.
	signed string
	// tokens are the Secrets that were made.
	tokens  []string
	changed []string
	// next is the last byte of the next address.
	next byte
	// versions are those of Kubernetes by image, v1.36.3 of others; "none" is an image that is
	// neither of berth nor of kind.
	versions map[string]string
	// volumes are those of nodes, each with a number of its own; env is the caller's environment.
	volumes map[string]int
	made    int
	// waits is what kubeadm init does; nil is nothing. parts are the answers to what has crashed, the
	// last one again and again, asks counts them; crashLog is the log that has crashText.
	waits               func(context.Context) error
	parts               []string
	asks                int
	crashLog, crashText string

	env map[string]string
}

var _ provider.Provider = (*fake)(nil)

var errFake = errors.New("the engine has a bad day")

func newFake(t *testing.T) *fake {
	f := &fake{t: t, files: map[string]string{}, next: 2, volumes: map[string]int{}}
	f.api = httptest.NewTLSServer(http.HandlerFunc(f.serve))
	t.Cleanup(f.api.Close)
	return f
}

// clusters are those of the fake, with a kubeconfig file of their own.
func (f *fake) clusters() (c *Clusters, steps *[]string) {
	steps = &[]string{}
	return &Clusters{
		Provider: f, Kubeconfig: kubeconfig.Files{filepath.Join(f.t.TempDir(), "config")},
		Reporter: report.Reporter{
			Step: func(text string) func(error) { f.say(steps, text); return func(error) {} },
			Warn: func(text string) { f.say(steps, "warning: "+text) },
		},
	}, steps
}

func (f *fake) say(steps *[]string, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*steps = append(*steps, text)
}

// serve answers with the nodes that have joined, on a watch with none more, and keeps a ConfigMap.
func (f *fake) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("watch") != "" {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case r.Method != http.MethodGet:
		f.change(w, r)
	case strings.HasSuffix(r.URL.Path, "/configmaps/cluster-info"):
		fmt.Fprint(w, `{"data":{"kubeconfig":"x"}}`)
	case strings.HasSuffix(r.URL.Path, "/configmaps/coredns"):
		if f.coredns == "" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, f.coredns)
	case strings.Contains(r.URL.Path, "/configmaps/"):
		if f.config == "" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, f.config)
	case r.URL.Path == "/api/v1/pods":
		fmt.Fprint(w, `{"items":[]}`)
	default:
		f.serveNodes(w)
	}
}

// knows fails a node that joins with a token for which the cluster has not signed.
func (f *fake) knows(node, line string) {
	for path, text := range f.files {
		if found := regexp.MustCompile(`token: "?([a-z0-9]{6})\.`).FindStringSubmatch(text); found != nil && strings.HasPrefix(path, node+":") && strings.Contains(line, " join") &&
			!strings.Contains(f.signed, `"jws-kubeconfig-`+found[1]+`":"`) {
			f.t.Errorf("%s: %s with the token %s, signed is %s", node, line, found[1], f.signed)
		}
	}
}

// change does what the API is asked to change.
func (f *fake) change(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		f.t.Error(err)
	}
	if strings.HasSuffix(r.URL.Path, "/configmaps/coredns") {
		f.coredns = string(body)
		return
	}
	if strings.HasSuffix(r.URL.Path, "/secrets") {
		f.tokens = append(f.tokens, string(body))
		return
	}
	if strings.HasSuffix(r.URL.Path, "/configmaps/cluster-info") {
		f.signed += string(body)
		return
	}
	if strings.Contains(r.URL.Path, "/configmaps") {
		if r.Method == http.MethodPut && f.config == "" {
			http.NotFound(w, r)
			return
		}
		f.config = string(body)
		return
	}
	name := path.Base(r.URL.Path)
	f.changed = append(f.changed, r.Method+" "+name+" "+string(body))
	if r.Method == http.MethodDelete {
		f.joined = slices.DeleteFunc(f.joined, func(n string) bool { return n == name })
	}
}

func (f *fake) serveNodes(w http.ResponseWriter) {
	if f.hidden != nil {
		f.hidden()
		fmt.Fprint(w, `{"metadata":{"resourceVersion":"1"},"items":[]}`)
		return
	}
	var items []string
	for i, name := range f.joined {
		status := "True"
		if f.notReady && i == 0 {
			status = "False"
		}
		items = append(items, fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"podCIDRs":["10.244.%d.0/24"]},"status":{"conditions":[{"type":"Ready","status":%q,"message":"no network","lastHeartbeatTime":%q}],
"addresses":[{"type":"InternalIP","address":"10.89.0.%d"}]}}`, name, i, status, time.Now().Format(time.RFC3339), i+2))
	}
	fmt.Fprintf(w, `{"metadata":{"resourceVersion":"1"},"items":[%s]}`, strings.Join(items, ","))
}

// call counts a call that changes something.
func (f *fake) call() error {
	f.calls++
	if f.calls == f.failAt {
		return errFake
	}
	return nil
}

func (f *fake) Name() string                  { return "podman" }
func (f *fake) Facts() provider.Facts         { return f.facts }
func (f *fake) Check(int) []hostcheck.Finding { return f.findings }
func (f *fake) PlanHost(n provider.Network) plan.Host {
	return plan.Host{Engine: "podman", Network: n.Name, Routes: f.routes, Env: f.env}
}

func (f *fake) EnsureNetwork(_ context.Context, name string) (provider.Network, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call(); err != nil {
		return provider.Network{}, err
	}
	made := !f.network
	f.network = true
	return provider.Network{Name: name, Subnets: f.subnets, Made: made, StableV4: !f.unstable}, nil
}

func (f *fake) RemoveNetwork(_ context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removed = append(f.removed, name)
	f.network = len(f.nodes) > 0
	return nil
}

func (f *fake) Create(_ context.Context, r provider.Request) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	failed := f.call()
	for i, spec := range r.Specs {
		if failed != nil && (!r.Retain || i >= f.retained) {
			break
		}
		n := provider.Node{
			Name: spec.Name, Image: spec.Image, Labels: r.Labels(spec), Running: true, State: "running",
			IPv4: netip.AddrFrom4([4]byte{10, 89, 0, f.next}),
		}
		f.next++
		if !f.unstable {
			n.Labels[provider.LabelAddresses] = n.IPv4.String()
		}
		if len(spec.Volumes) > 0 && (!spec.Reuse || f.volumes[spec.Name] == 0) {
			f.made++
			f.volumes[spec.Name] = f.made
		}
		if (spec.Command != nil) != (inventory.Role(n) == config.BalancerRole || inventory.Role(n) == plan.RegistryRole || inventory.Role(n) == inventory.TrialRole) {
			f.t.Errorf("%s runs %q", spec.Name, spec.Command)
		}
		for _, p := range spec.Ports {
			// With a load balancer, nobody but it leads to the API.
			if p.Container == plan.APIPort && (inventory.Role(n) == config.BalancerRole || !strings.Contains(fmt.Sprint(r.Specs[0].Name), "balancer")) {
				p.Host = int(f.address().Port())
			}
			n.Ports = append(n.Ports, p)
		}
		if inventory.Role(n) == plan.RegistryRole {
			n.Ports = []plan.Port{{Listen: "127.0.0.1", Host: f.registryPort, Container: plan.RegistryPort, Protocol: config.TCP}}
		}
		f.nodes = append(f.nodes, n)
	}
	slices.SortFunc(f.nodes, func(a, b provider.Node) int { return strings.Compare(a.Name, b.Name) })
	return failed
}

func (f *fake) address() netip.AddrPort {
	return netip.MustParseAddrPort(strings.TrimPrefix(f.api.URL, "https://"))
}

func (f *fake) List(_ context.Context, cluster string) ([]provider.Node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []provider.Node
	for _, n := range f.nodes {
		if cluster == "" || n.Labels[plan.LabelCluster] == cluster {
			found = append(found, n)
		}
	}
	return found, nil
}

func (f *fake) power(on bool, names []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.nodes {
		for _, name := range names {
			if f.nodes[i].Name == name {
				f.nodes[i].Running = on
			}
		}
	}
	return nil
}

func (f *fake) Start(_ context.Context, names ...string) error { return f.power(true, names) }
func (f *fake) Stop(_ context.Context, names ...string) error  { return f.power(false, names) }

func (f *fake) Delete(ctx context.Context, names ...string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes = slices.DeleteFunc(f.nodes, func(n provider.Node) bool { return slices.Contains(names, n.Name) })
	for _, name := range names {
		delete(f.volumes, name)
	}
	return nil
}

func (f *fake) Release(ctx context.Context, names ...string) error {
	f.mu.Lock()
	kept := map[string]int{}
	for _, name := range names {
		kept[name] = f.volumes[name]
	}
	f.mu.Unlock()
	err := f.Delete(ctx, names...)
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, volume := range kept {
		f.volumes[name] = volume
	}
	return err
}

// image is that of a node.
func (f *fake) image(name string) string {
	for _, n := range f.nodes {
		if n.Name == name {
			return n.Image
		}
	}
	return ""
}

func (f *fake) DeleteCluster(ctx context.Context, cluster string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var left []provider.Node
	for _, n := range f.nodes {
		if n.Labels[plan.LabelCluster] != cluster {
			left = append(left, n)
		}
	}
	f.nodes, f.joined, f.members, f.config = left, nil, nil, ""
	return nil
}

// asked is how often a node was asked what has crashed.
func (f *fake) asked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asks
}

func (f *fake) Exec(ctx context.Context, name string, c provider.Command) error {
	line := strings.Join(c.Args, " ")
	if f.waits != nil && strings.HasPrefix(line, "kubeadm init --config") {
		if err := f.waits(ctx); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, file := range c.Files {
		f.files[name+":"+file.Path] = string(file.Content)
	}
	if len(c.Args) > 0 {
		f.ran = append(f.ran, name+": "+line)
	}
	if f.failOnce != "" && strings.HasPrefix(line, f.failOnce) {
		f.failOnce = ""
		return errFake
	}
	if strings.Contains(line, "import") && c.Stdin != nil {
		text, err := io.ReadAll(c.Stdin)
		if err != nil {
			return err
		}
		f.files[name+":image"] += string(text)
	}
	if strings.HasPrefix(line, "kubectl") && strings.Contains(line, " apply") {
		text, err := io.ReadAll(c.Stdin)
		if err != nil {
			return err
		}
		f.files[name+":applied"] += string(text)
	}
	if f.failOn != "" && (strings.HasPrefix(line, f.failOn) || strings.HasPrefix(name+": "+line, f.failOn)) {
		return errFake
	}
	if !slices.ContainsFunc(f.nodes, func(n provider.Node) bool { return n.Name == name && n.Running }) {
		return fmt.Errorf("%s does not run: %w", name, errs.State)
	}
	if c.Stdout == nil {
		if err := f.call(); err != nil {
			return err
		}
	}
	out := ""
	switch {
	case strings.HasSuffix(line, "cat /usr/share/berth/kubernetes-version"):
		if f.kind[name] || f.versions[f.image(name)] == "none" {
			return errors.New("no such file")
		}
		out = cmp.Or(f.versions[f.image(name)], "v1.36.3") + "\n"
	case strings.HasSuffix(line, "cat /kind/version"):
		if !f.kind[name] {
			return errors.New("no such file")
		}
		out = "v1.36.3"
	case line == "cat "+adminFile:
		out = `{"apiVersion":"v1","kind":"Config","current-context":"a","clusters":[{"name":"a","cluster":{"server":"https://x","insecure-skip-tls-verify":true}}],` +
			`"users":[{"name":"a","user":{}}],"contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}]}`
	case line == "cat "+innode.BalancerFile:
		out = f.balanced
	case strings.HasPrefix(line, "cat "), strings.HasPrefix(line, "sh -c ! test -e /kind"), strings.HasPrefix(line, "containerd config"), strings.HasPrefix(line, "ctr"):
		out = f.files[name+":"+c.Args[len(c.Args)-1]]
	case line == "berth image layers -o json":
		out = cmp.Or(f.has[name], "[]")
	case strings.HasPrefix(line, "kubeadm init phase"):
	case strings.HasPrefix(line, "kubeadm"):
		f.knows(name, line)
		f.joined = append(f.joined, name)
		if strings.Contains(name, "control-plane") {
			f.members = append(f.members, name)
		}
	case strings.Contains(line, "in-node rebalance"):
		text, err := io.ReadAll(c.Stdin)
		if err != nil {
			return err
		}
		f.balanced = string(text)
	case strings.Contains(line, "in-node forget-member"):
		f.members = slices.DeleteFunc(f.members, func(m string) bool { return m == c.Args[4] })
	case strings.HasPrefix(line, "tar --create"):
		out = "authorities"
	case strings.HasPrefix(line, "tar --extract"):
		text, err := io.ReadAll(c.Stdin)
		if err != nil {
			return err
		}
		f.files[name+":pki"] = string(text)
	case strings.HasSuffix(line, crashScript):
		if f.asks++; len(f.parts) > 0 {
			out = f.parts[min(f.asks, len(f.parts))-1]
		}
	case f.crashLog != "" && strings.HasSuffix(line, f.crashLog):
		out = f.crashText
	case strings.HasPrefix(line, "journalctl"):
		out = "kubelet: cannot find its feet\n"
	case strings.HasPrefix(line, "sed"):
		out = "builtin\n"
	case strings.HasPrefix(line, "sh -c tar"):
		var text bytes.Buffer
		w := tar.NewWriter(&text)
		const log = "log of etcd"
		if err := errors.Join(w.WriteHeader(&tar.Header{Name: "./pods/kube-system_etcd/0.log", Typeflag: tar.TypeReg, Size: int64(len(log))})); err != nil {
			return err
		}
		if _, err := w.Write([]byte(log)); err != nil {
			return err
		}
		out = text.String()
	}
	if c.Stdout != nil {
		fmt.Fprint(c.Stdout, out)
	}
	return nil
}

func (f *fake) Logs(_ context.Context, name string, to io.Writer) error {
	_, err := fmt.Fprintln(to, "log of", name)
	return err
}

func (f *fake) Describe(_ context.Context, name string, to io.Writer) error {
	_, err := fmt.Fprintln(to, "this is", name, `"HTTPS_PROXY=http://me:geheim@proxy:3128"`)
	return err
}

func (f *fake) Ensure(context.Context, string, io.Writer) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return false, f.call()
}

func (f *fake) Present(_ context.Context, image string) (provider.Image, error) {
	found := provider.Image{ID: f.ids[image]}
	if !strings.Contains(image, "kindest") {
		found.Labels = map[string]string{nodeimage.LabelBerth: "0.1.0"}
	}
	return found, nil
}

func (f *fake) Save(_ context.Context, to io.Writer, images ...string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ran = append(f.ran, "save "+strings.Join(images, " "))
	_, err := to.Write(f.saved)
	return err
}
func (f *fake) Load(context.Context, io.Reader) error { return errs.Unsupported }
