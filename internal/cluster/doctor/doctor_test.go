package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/cluster"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/kubeconfig"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/provider/hostcheck"
	"github.com/berthrun/berth/internal/cluster/report"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/finding"
)

// patient is an engine with a cluster of one control plane and one worker. It is healthy unless a
// test breaks it.
type patient struct {
	provider.Provider
	t        *testing.T
	nodes    []provider.Node
	registry []provider.Node
	facts    provider.Facts
	findings []hostcheck.UnmetRequirement
	// says is the output of commands in nodes, by a part of the node's name and the command.
	says map[string]string
	// mute makes all commands in nodes hang.
	mute bool
	// known are the nodes in the API with their condition.
	known map[string]string
	api   *httptest.Server
}

const (
	plane  = "dev-control-plane"
	worker = "dev-worker"
)

func newPatient(t *testing.T) *patient {
	p := &patient{
		t: t, known: map[string]string{plane: "True", worker: "True"}, facts: provider.Facts{Version: "4.3.1"},
		says: map[string]string{
			"test -e": "made", "readyz": "[+]ping ok\nreadyz check passed", "getent": "10.89.0.2 dev-control-plane\nnameserver 10.89.0.1", "df ": "90000000 100000000 900000 1000000",
			"systemctl": "unit berth.service active yes\nunit kubelet.service active yes",
			"lookup":    "server 10.96.0.10\npod coredns-1 Running true \nanswer address 10.96.0.1",
		},
	}
	p.api = httptest.NewTLSServer(http.HandlerFunc(p.serve))
	t.Cleanup(p.api.Close)
	at := netip.MustParseAddrPort(strings.TrimPrefix(p.api.URL, "https://"))
	for name, role := range map[string]config.Role{plane: config.ControlPlane, worker: config.Worker} {
		n := provider.Node{Name: name, Running: true, State: "running", Labels: map[string]string{plan.LabelCluster: "dev", plan.LabelRole: string(role), plan.LabelContext: "berth-dev"}}
		if role == config.ControlPlane {
			n.Ports = []plan.Port{{Listen: "127.0.0.1", Host: int(at.Port()), Container: plan.APIPort, Protocol: config.TCP}}
			p.nodes = append([]provider.Node{n}, p.nodes...)
			continue
		}
		p.nodes = append(p.nodes, n)
	}
	return p
}

func (p *patient) serve(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	var items []string
	for name, status := range p.known {
		items = append(items, fmt.Sprintf(`{"metadata":{"name":%q},"status":{"conditions":[{"type":"Ready","status":%q,"message":"PLEG is not healthy"}]}}`, name, status))
	}
	fmt.Fprintf(w, `{"metadata":{"resourceVersion":"1"},"items":[%s]}`, strings.Join(items, ","))
}

func (p *patient) Name() string                           { return "podman" }
func (p *patient) Facts() provider.Facts                  { return p.facts }
func (p *patient) Check(int) []hostcheck.UnmetRequirement { return p.findings }

func (p *patient) List(_ context.Context, name string) ([]provider.Node, error) {
	switch name {
	case plan.RegistryGroup:
		return p.registry, nil
	case "dev", "":
		return p.nodes, nil
	}
	return nil, nil
}

func (p *patient) Logs(_ context.Context, _ string, to io.Writer) error {
	_, err := fmt.Fprintln(to, "first\nlast words")
	return err
}

func (p *patient) Exec(ctx context.Context, name string, c provider.Command) error {
	if p.mute {
		return errors.New("exit status 124")
	}
	line := strings.Join(c.Args, " ")
	if strings.HasSuffix(line, "admin.conf") && c.Args[0] == "cat" {
		_, err := fmt.Fprint(c.Stdout, `{"apiVersion":"v1","kind":"Config","current-context":"a","clusters":[{"name":"a","cluster":{"server":"https://x","insecure-skip-tls-verify":true}}],`+
			`"users":[{"name":"a","user":{}}],"contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}]}`)
		return err
	}
	longest, said := "", ""
	for key, text := range p.says {
		of, part, found := strings.Cut(key, ": ")
		if !found {
			of, part = "", key
		}
		if strings.Contains(line, part) && (of == "" || of == name) && len(key) > len(longest) {
			longest, said = key, text
		}
	}
	if longest == "" {
		p.t.Errorf("nobody expects %q", line)
	}
	_, err := fmt.Fprintln(c.Stdout, said)
	return err
}

// clusters are those of the patient, with its entry in a kubeconfig.
func (p *patient) clusters() *cluster.Clusters {
	c := &cluster.Clusters{
		Provider: p, Kubeconfig: kubeconfig.Files{filepath.Join(p.t.TempDir(), "config")},
		Reporter: report.Reporter{Step: func(string) func(error) { return func(error) {} }, Warn: func(string) {}},
	}
	if _, _, err := c.Export(p.t.Context(), "dev", false); err != nil {
		p.t.Fatal(err)
	}
	return c
}

func render(all []finding.Finding) string {
	var text strings.Builder
	for _, f := range all {
		fmt.Fprintf(&text, "%s %s: %s => %s\n", f.Level, f.Check, f.Evidence, f.Fix)
	}
	return text.String()
}

// TestRoomFix: the fix for a full disk has commands that the engine has.
func TestRoomFix(t *testing.T) {
	for engine, want := range map[string]string{"podman": "podman system prune", "docker": "docker system prune", "berth": "berth image rm"} {
		if got := roomFix(engine); !strings.Contains(got, want) || engine == "berth" && strings.Contains(got, "prune") {
			t.Errorf("%s: %q, want %q in it", engine, got, want)
		}
	}
}

func TestHealthy(t *testing.T) {
	all := Examine(t.Context(), newPatient(t).clusters(), Options{Name: "dev", Wanted: true})
	for _, f := range all {
		// The test does not set the location of the engine's disk.
		if f.Check != "disk" && (f.Level != finding.OK || f.Fix != "") {
			t.Errorf("%+v", f)
		}
	}
	if len(all) < 14 {
		t.Errorf("only %d checks:\n%s", len(all), render(all))
	}
}

// TestSick: doctor finds each single problem, and reports its evidence and its fix.
func TestSick(t *testing.T) {
	var lc net.ListenConfig
	taken, err := lc.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, test := range map[string]struct {
		spoil func(p *patient, c *cluster.Clusters)
		level finding.Level
		want  []string
	}{
		"host": {func(p *patient, _ *cluster.Clusters) {
			p.findings = []hostcheck.UnmetRequirement{hostcheck.Problem("too few inotify instances", "sysctl -w")}
		}, finding.Problem, []string{"host: too few inotify instances => sysctl -w"}},
		"stopped node": {func(p *patient, _ *cluster.Clusters) {
			p.nodes[1].Running, p.nodes[1].State, p.nodes[1].ExitCode = false, "exited", 137
		}, finding.Problem, []string{"dev-worker is exited, status 137; its log ends with: last words => berth cluster start dev"}},
		"its port is taken": {func(p *patient, _ *cluster.Clusters) {
			p.nodes[1].Running = false
			p.nodes[1].Ports = []plan.Port{{Listen: "127.0.0.1", Host: taken.Addr().(*net.TCPAddr).Port, Container: 80, Protocol: config.TCP}}
		}, finding.Problem, []string{"ports: 127.0.0.1:", "which leads to dev-worker, is in use", "ss -lnp"}},
		"registry stopped": {func(p *patient, _ *cluster.Clusters) {
			p.registry = []provider.Node{{Name: plan.RegistryName, State: "exited"}}
		}, finding.Warning, []string{"registry: berth-registry is exited", "berth cluster registry start"}},
		"failed unit": {func(p *patient, _ *cluster.Clusters) {
			p.says[worker+": systemctl"] = "unit berth.service failed yes\nunit kubelet.service active yes\nfailed berth.service no space left \nfailed other.service "
		}, finding.Problem, []string{"problem units: dev-worker: berth.service has failed; it said: no space left => podman exec dev-worker journalctl -u berth.service", "warning units: dev-worker: other.service has failed"}},
		"unit not set up": {func(p *patient, _ *cluster.Clusters) {
			p.says[worker+": systemctl"] = "unit berth.service active yes\nunit kubelet.service inactive no"
		}, finding.Problem, []string{"dev-worker: kubelet.service has not been set up => the creation of the cluster was interrupted"}},
		"unit stopped": {func(p *patient, _ *cluster.Clusters) {
			p.says[worker+": systemctl"] = "unit berth.service active yes\nunit kubelet.service inactive yes"
		}, finding.Problem, []string{"dev-worker: kubelet.service is inactive => podman exec dev-worker systemctl start kubelet.service"}},
		"full disk": {
			func(p *patient, _ *cluster.Clusters) { p.says[worker+": df "] = "1000 100000000 10 1000000" },
			finding.Problem,
			[]string{"disk of nodes: dev-worker: /var has 0 MiB of 97656 MiB left", "room for 10 of 1000000 files"},
		},
		"no name": {
			func(p *patient, _ *cluster.Clusters) { p.says[worker+": getent"] = "none\nnameserver 10.89.0.1" },
			finding.Problem,
			[]string{"dev-worker finds no address of dev-control-plane; its name servers are 10.89.0.1"},
		},
		"half made": {
			func(p *patient, _ *cluster.Clusters) { p.says["test -e"] = "" },
			finding.Problem,
			[]string{"dev-control-plane has no /etc/kubernetes/admin.conf", "berth cluster logs --name dev", "warning API: not checked"},
		},
		"etcd": {func(p *patient, _ *cluster.Clusters) {
			p.says["readyz"] = "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed"
		}, finding.Problem, []string{"the API server says etcd failed"}},
		"no API": {
			func(p *patient, _ *cluster.Clusters) { p.says["readyz"] = "Unable to connect to the server" },
			finding.Problem,
			[]string{"the API server does not answer: Unable to connect", "warning DNS: not checked"},
		},
		"way to the API": {
			func(p *patient, _ *cluster.Clusters) { p.api.Close() },
			finding.Problem,
			[]string{"no server answers this host at https://127.0.0.1:", "it answers in its node"},
		},
		"API of another host": {
			func(p *patient, _ *cluster.Clusters) { p.api.Close(); p.facts.Remote = true },
			finding.Warning,
			[]string{"is a port of the host of podman, which this host does not reach", "kubeconfig --internal"},
		},
		"no context": {
			func(_ *patient, c *cluster.Clusters) { os.Remove(c.Kubeconfig[0]) },
			finding.Warning,
			[]string{"has no context berth-dev => berth cluster kubeconfig export dev"},
		},
		"stale context": {func(_ *patient, c *cluster.Clusters) {
			text, err := os.ReadFile(c.Kubeconfig[0])
			if err == nil {
				err = os.WriteFile(c.Kubeconfig[0], []byte(strings.Replace(string(text), "https://127.0.0.1:", "https://127.0.0.1:1", 1)), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, finding.Problem, []string{"says that berth-dev is at https://127.0.0.1:1", "kubeconfig export"}},
		"not Ready": {
			func(p *patient, _ *cluster.Clusters) { p.known[worker] = "False" },
			finding.Problem,
			[]string{"dev-worker is not Ready: PLEG is not healthy"},
		},
		"not joined": {func(p *patient, _ *cluster.Clusters) { delete(p.known, worker) }, finding.Problem, []string{"dev-worker has not joined the cluster"}},
		"gone":       {func(p *patient, _ *cluster.Clusters) { p.known["dev-worker2"] = "True" }, finding.Problem, []string{"kubectl delete node dev-worker2"}},
		"CoreDNS": {func(p *patient, _ *cluster.Clusters) {
			p.says["lookup"] = "server 10.96.0.10\npod coredns-1 Pending false ContainerCreating\nanswer i/o timeout"
		}, finding.Problem, []string{"no pod of CoreDNS is ready: coredns-1 Pending false ContainerCreating"}},
		"DNS": {func(p *patient, _ *cluster.Clusters) {
			p.says["lookup"] = "server 10.96.0.10\npod coredns-1 Running true \nanswer lookup kubernetes: i/o timeout"
		}, finding.Problem, []string{"the DNS of the cluster at 10.96.0.10 does not answer: lookup kubernetes: i/o timeout"}},
		"nodes that answer nothing": {func(p *patient, _ *cluster.Clusters) { p.mute = true }, finding.Warning, []string{"units: cannot be checked: dev-control-plane: exit status 124", "dev-worker: exit status 124"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPatient(t)
			c := p.clusters()
			test.spoil(p, c)
			all := Examine(t.Context(), c, Options{Name: "dev"})
			text := render(all)
			for _, part := range test.want {
				if !strings.Contains(text, part) {
					t.Errorf("want %q in\n%s", part, text)
				}
			}
			if finding.HasProblem(all) != (test.level == finding.Problem) {
				t.Errorf("sick: %v\n%s", finding.HasProblem(all), text)
			}
		})
	}
}

// TestNoCluster: a host without a cluster is healthy, unless the command names a cluster.
func TestNoCluster(t *testing.T) {
	c := newPatient(t).clusters()
	if all := Examine(t.Context(), c, Options{Name: "other"}); finding.HasProblem(all) || strings.Contains(render(all), errs.NotFound.Error()) {
		t.Errorf("%s", render(all))
	}
	all := Examine(t.Context(), c, Options{Name: "other", Wanted: true})
	if !finding.HasProblem(all) || !strings.Contains(render(all), `no nodes found for cluster "other"`) {
		t.Errorf("%s", render(all))
	}
	if all := NoEngine(fmt.Errorf("none is in PATH: %w", errs.Unavailable)); !finding.HasProblem(all) || all[0].Fix == "" || all[0].Evidence != "none is in PATH" {
		t.Errorf("%s", render(all))
	}
}

// TestSeveralClusters: without a cluster name, doctor still checks the host.
func TestSeveralClusters(t *testing.T) {
	all := Examine(t.Context(), newPatient(t).clusters(), Options{Which: errors.New("podman has several clusters: a, b; say which")})
	last := all[len(all)-1]
	if finding.HasProblem(all) || len(all) != 5 || last.Check != "cluster" || !strings.Contains(last.Evidence, "several clusters: a, b") {
		t.Errorf("%+v", all)
	}
}

func TestFull(t *testing.T) {
	for want, c := range map[finding.Level][2]uint64{finding.OK: {100 << 30, 1000 << 30}, finding.Warning: {40 << 30, 1000 << 30}, finding.Problem: {1 << 29, 1 << 30}} {
		if got := full(c[0], c[1], leastFree); got != want {
			t.Errorf("%v: %s, want %s", c, got, want)
		}
	}
	if got := full(0, 0, leastFree); got != finding.OK {
		t.Errorf("a size that nobody knows: %s", got)
	}
}
