package berth

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/provider/hostcheck"
	"github.com/berthrun/berth/internal/cri/shape"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/ocispec/check"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/pod/podtest"
)

func TestAnnotationsAreTheDaemons(t *testing.T) {
	for ours, daemons := range map[string]string{
		annotationTmpfs: request.AnnotationTmpfs, annotationCgroupns: request.AnnotationCgroupns, annotationVolumes: request.AnnotationVolumes,
		annotationStorage: request.AnnotationStorage, annotationAddresses: network.AnnotationAddresses,
	} {
		if ours != daemons {
			t.Errorf("%s is %s to the daemon", ours, daemons)
		}
	}
}

// TestRequestsPassTheDaemonsChecks: the provider sends no request that the daemon would refuse.
func TestRequestsPassTheDaemonsChecks(t *testing.T) {
	r := &record{Spec: spec("dev-worker"), UID: "u", Run: 3, Addresses: []netip.Addr{addr("10.99.0.7"), addr("fd00::7")}}
	r.Ports = r.Spec.Ports
	r.Spec.Sysctls = map[string]string{"net.ipv6.conf.all.disable_ipv6": "0"}
	r.Spec.Mounts = append(r.Spec.Mounts, plan.Mount{Source: "/srv", Target: "/srv", Relabel: true, Propagation: config.PropagateBidirectional})
	pod, err := podConfig(r, "/var/lib/berth-cluster/dev-worker", dns(fstest.MapFS{}, addr("10.99.0.1")))
	if err != nil {
		t.Fatal(err)
	}
	c := containerConfig(r, "/var/lib/berth-cluster/dev-worker")
	if err := errors.Join(shape.Sandbox(pod), shape.Container(c), check.Sandbox(pod), check.Container(c, pod)); err != nil {
		t.Error(err)
	}
	if got := pod.Annotations[annotationAddresses]; got != "10.99.0.7,fd00::7" {
		t.Errorf("addresses %q", got)
	}
	if p := pod.PortMappings[0]; p.HostPort != 36443 || p.ContainerPort != 6443 || p.HostIp != "127.0.0.1" || p.Protocol != runtimeapi.Protocol_TCP {
		t.Errorf("port %v", p)
	}
	if c.StopSignal != runtimeapi.Signal_SIGNAL_SIGRTMINPLUS3 || !c.Tty || c.LogPath != "3.log" {
		t.Errorf("%v %v %v", c.StopSignal, c.Tty, c.LogPath)
	}
	if m := c.Mounts[0]; m.ContainerPath != "/etc/hosts" || m.HostPath != "/var/lib/berth-cluster/dev-worker/hosts" {
		t.Errorf("hosts: %v", m)
	}
	if m := c.Mounts[2]; m.Propagation != runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL || !m.SelinuxRelabel {
		t.Errorf("mount: %v", m)
	}
	r.Spec.Mounts = append(r.Spec.Mounts, plan.Mount{Source: "/h", Target: "/etc/hosts"})
	if got := containerConfig(r, "/d").Mounts; got[len(got)-1].HostPath != "/h" || got[0].ContainerPath == "/etc/hosts" {
		t.Errorf("a hosts file of the description's own: %v", got)
	}
	balancer := &record{Spec: spec("dev-lb"), UID: "u", Addresses: r.Addresses}
	balancer.Spec.Privileged, balancer.Spec.Command = false, []string{"haproxy"}
	pod, err = podConfig(balancer, "/d", &runtimeapi.DNSConfig{})
	c = containerConfig(balancer, "/d")
	if err := errors.Join(err, shape.Sandbox(pod), shape.Container(c), check.Sandbox(pod), check.Container(c, pod)); err != nil || len(pod.Annotations) > 0 || c.StopSignal != 0 {
		t.Errorf("a balancer: %v, %v, %v", err, pod.Annotations, c.StopSignal)
	}
}

// TestLife: two nodes are created, listed, used, stopped, started with their files, and deleted.
func TestLife(t *testing.T) {
	m := newMachine(t)
	worker := spec("dev-worker")
	worker.Ports[0].Host = config.EnginePort
	if err := m.create(spec("dev-control-plane"), worker); err != nil {
		t.Fatal(err)
	}
	m.wantNodes("dev", "dev-control-plane running 10.99.0.254", "dev-worker running 10.99.0.253")
	m.wantNodes("other")
	// A load balancer has no DNS server to resolve names.
	if all, err := m.own.List(t.Context(), "dev"); err != nil || fmt.Sprint(all[1].Stable()) != "[10.99.0.253 fd00:99::fffe]" {
		t.Errorf("addresses that stay: %v, %v", all, err)
	}
	for _, name := range []string{"dev-control-plane", "dev-worker"} {
		if got := m.hosts(name); !strings.Contains(got, "10.99.0.254\tdev-control-plane\n") || !strings.Contains(got, "fd00:99::fffe\tdev-worker\n") {
			t.Errorf("hosts of %s:\n%s", name, got)
		}
	}
	if err := m.create(spec("dev-worker")); !errors.Is(err, errs.Exists) || !strings.Contains(err.Error(), "dev-worker") {
		t.Errorf("a name that is taken: %v", err)
	}
	all, err := m.own.List(t.Context(), "")
	if err != nil || len(all) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	if got := all[0].Labels; got[provider.LabelOn] != "kind" || got[provider.LabelAPI] != "127.0.0.1:36443" {
		t.Errorf("labels %v", got)
	}
	if at, err := all[0].Endpoint(6443); err != nil || at.String() != "127.0.0.1:36443" {
		t.Errorf("endpoint %v, %v", at, err)
	}
	if l := all[0].Labels; l[provider.LabelOn] != m.network().Name || l[provider.LabelAPI] != "127.0.0.1:36443" || l[plan.LabelCluster] != "dev" {
		t.Errorf("labels %v", l)
	}
	if at, err := all[1].Endpoint(6443); err != nil || at.Port() == 0 {
		t.Errorf("endpoint with a port of the engine's choice %v, %v", at, err)
	}
	for range 2 {
		if err := m.own.Stop(t.Context(), "dev-control-plane", "dev-worker"); err != nil {
			t.Fatal(err)
		}
	}
	m.wantNodes("dev", "dev-control-plane exited 10.99.0.254", "dev-worker exited 10.99.0.253")
	if left := m.net.Left(); len(left) > 0 {
		t.Errorf("nodes that are stopped have ports: %q", left)
	}
	if err := m.own.Exec(t.Context(), "dev-worker", provider.Command{Args: []string{"echo"}}); !errors.Is(err, errs.State) {
		t.Errorf("a command in a node that is stopped: %v", err)
	}
	for range 2 {
		if err := m.own.Start(t.Context(), "dev-control-plane", "dev-worker"); err != nil {
			t.Fatal(err)
		}
	}
	m.wantNodes("dev", "dev-control-plane running 10.99.0.254", "dev-worker running 10.99.0.253")
	if pods := len(m.engine.Left()); pods != 4 { // two pods, two containers
		t.Errorf("%d things are there", pods)
	}
	var log bytes.Buffer
	if err := m.own.Logs(t.Context(), "dev-worker", &log); err != nil || strings.Count(log.String(), "Multi-User") != 2 {
		t.Errorf("log %q, %v", log.String(), err)
	}
	if err := m.own.Delete(t.Context(), "dev-worker", "dev-nobody"); err != nil {
		t.Fatal(err)
	}
	if got := m.hosts("dev-control-plane"); strings.Contains(got, "dev-worker") {
		t.Errorf("hosts after a node has gone:\n%s", got)
	}
	for range 2 {
		if err := m.own.DeleteCluster(t.Context(), "dev"); err != nil {
			t.Fatal(err)
		}
	}
	m.wantNothing()
}

// TestBoot: nodes that ran when the host shut down start when it boots. A node that a user has
// stopped stays stopped until a user starts it.
func TestBoot(t *testing.T) {
	m := newMachine(t)
	other := spec("other-worker")
	other.Ports = nil
	if err := m.create(spec("dev-worker"), other); err != nil {
		t.Fatal(err)
	}
	cycle := func(want string) {
		t.Helper()
		for range 2 {
			if err := m.own.Down(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		m.wantNodes("dev", "dev-worker exited 10.99.0.254")
		m.wantNodes("other", "other-worker exited 10.99.0.253")
		for range 2 {
			if err := m.own.Up(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		m.wantNodes("dev", "dev-worker running 10.99.0.254")
		m.wantNodes("other", "other-worker "+want+" 10.99.0.253")
	}
	cycle("running")
	if err := m.own.Stop(t.Context(), "other-worker"); err != nil {
		t.Fatal(err)
	}
	cycle("exited")
	if err := m.own.Start(t.Context(), "other-worker"); err != nil {
		t.Fatal(err)
	}
	cycle("running")

	// A stop that was killed before it stopped anything.
	r, err := m.own.read("other-worker")
	if err != nil {
		t.Fatal(err)
	}
	r.Stopped = true
	if err := m.own.write(r); err != nil {
		t.Fatal(err)
	}
	if err := m.own.Start(t.Context(), "other-worker"); err != nil {
		t.Fatal(err)
	}
	cycle("running")

	// The provider reports a node whose record is unreadable. It still stops and starts the others.
	damaged := m.own.nodeDir("damaged")
	for _, step := range []struct {
		do   func(context.Context) error
		want string
	}{{m.own.Down, "exited"}, {m.own.Up, "running"}} {
		if err := os.Mkdir(damaged, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(damaged, recordName), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := step.do(t.Context()); err == nil || !strings.Contains(err.Error(), damaged) {
			t.Errorf("with a damaged record: %v", err)
		}
		if err := os.RemoveAll(damaged); err != nil {
			t.Fatal(err)
		}
		m.wantNodes("dev", "dev-worker "+step.want+" 10.99.0.254")
	}
}

// TestFactsHaveTheRoot: images and disks of nodes are on the disk of the daemon's root directory, which a
// diagnosis looks at.
func TestFactsHaveTheRoot(t *testing.T) {
	m := newMachine(t)
	if got := m.own.Facts(); got.Root != m.world.RootDir || got.Remote {
		t.Errorf("the root is %q, want %q; remote: %v", got.Root, m.world.RootDir, got.Remote)
	}
}

// TestBootReminder: the reminder about the boot unit contains the socket if it is not the default.
func TestBootReminder(t *testing.T) {
	host := hostcheck.Host{Root: fstest.MapFS{"run/systemd/system/x": {}}}
	for endpoint, known := range map[string]bool{"": true, "unix:///run/b2/berth.sock": false} {
		found := (&Provider{env: map[string]string{"BERTH_ENDPOINT": endpoint}}).reboot(host)
		if len(found) != 1 || !strings.HasSuffix(found[0].Fix, "systemctl enable --now berth-cluster.service") || strings.Contains(found[0].Fix, "BERTH_ENDPOINT=unix:///run/b2/berth.sock\\n") == known {
			t.Errorf("%q: %v", endpoint, found)
		}
	}
}

// TestReboot: a reboot leaves only the nodes' records. The nodes start with their files, except for
// an address that another pod has taken meanwhile.
func TestReboot(t *testing.T) {
	m := newMachine(t)
	worker := spec("dev-worker")
	worker.Ports = nil
	if err := m.create(spec("dev-control-plane"), worker); err != nil {
		t.Fatal(err)
	}
	m.stop()
	m.engine.Forget()
	m.world.BootID = "boot-2"
	if err := os.RemoveAll(m.world.StateDir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(m.world.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	m.serve()
	thief := spec("other-worker")
	thief.Ports = nil
	if err := m.create(thief); err != nil {
		t.Fatal(err)
	}
	m.wantNodes("other", "other-worker running 10.99.0.252")
	steal := &record{Spec: thief, UID: "thief", Run: 1, Addresses: []netip.Addr{addr("10.99.0.253"), addr("fd00:99::fffe")}}
	steal.Spec.Name, steal.Spec.Labels = "pod", nil
	pod, err := podConfig(steal, t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.own.conn.Runtime.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: pod}); err != nil {
		t.Fatal(err)
	}
	if err := m.own.Start(t.Context(), "dev-control-plane", "dev-worker"); err != nil {
		t.Fatal(err)
	}
	m.wantNodes("dev", "dev-control-plane running 10.99.0.254", "dev-worker running 10.99.0.251")
	if got := m.hosts("dev-control-plane"); !strings.Contains(got, "10.99.0.251\tdev-worker\n") {
		t.Errorf("hosts:\n%s", got)
	}
	m.engine.mu.Lock()
	defer m.engine.mu.Unlock()
	var storages []string
	for _, c := range m.engine.specs {
		if c.Config.GetLabels()[provider.LabelNode] == "dev-worker" {
			storages = append(storages, c.Config.GetAnnotations()[annotationStorage])
		}
	}
	if want := filepath.Join(m.own.nodeDir("dev-worker"), "storage"); !slices.Equal(storages, []string{want, want}) {
		t.Errorf("storages %q", storages)
	}
}

// TestCreateFails: no node leaves anything, unless the nodes are to be retained.
func TestCreateFails(t *testing.T) {
	m := newMachine(t)
	for name, c := range map[string]struct {
		says   string
		refuse error
		want   string
	}{
		"the container is refused": {refuse: errRefused, want: "no such mount"},
		"systemd fails":            {says: "Freezing execution.", want: "Freezing execution"},
	} {
		m.engine.mu.Lock()
		boots := m.engine.says
		m.engine.says = func(spec *engine.ContainerSpec) string {
			if spec.Config.GetLabels()[provider.LabelNode] == "dev-worker" && c.says != "" {
				return c.says
			}
			return boots(spec)
		}
		m.engine.refuse = func(spec *engine.ContainerSpec) error {
			if spec.Config.GetLabels()[provider.LabelNode] == "dev-worker" {
				return c.refuse
			}
			return nil
		}
		m.engine.mu.Unlock()
		worker := spec("dev-worker")
		worker.Ports = nil
		request := provider.Request{Network: m.network(), Specs: []provider.Spec{spec("dev-control-plane"), worker}, Wait: 2 * time.Second}
		if err := m.own.Create(t.Context(), request); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "dev-worker") {
			t.Errorf("%s: %v", name, err)
		}
		m.wantNothing()
		request.Retain = true
		if err := m.own.Create(t.Context(), request); err == nil {
			t.Errorf("%s: no error", name)
		}
		if got := m.nodes("dev"); len(got) != 2 {
			t.Errorf("%s: retained are %q", name, got)
		}
		if err := m.own.DeleteCluster(t.Context(), "dev"); err != nil {
			t.Error(err)
		}
		m.wantNothing()
		m.engine.mu.Lock()
		m.engine.says = boots
		m.engine.mu.Unlock()
	}
}

func TestExec(t *testing.T) {
	m := newMachine(t)
	if err := m.create(spec("dev-worker")); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := m.own.Exec(t.Context(), "dev-worker", provider.Command{Args: []string{"cat"}, Stdin: strings.NewReader("in"), Stdout: &out, Env: map[string]string{"A": "1", "B": "2"}})
	if err != nil || out.String() != "in" {
		t.Errorf("%q, %v", out.String(), err)
	}
	if last := m.engine.commands[len(m.engine.commands)-1]; !slices.Equal(last, []string{"env", "A=1", "B=2", "cat"}) {
		t.Errorf("command %q", last)
	}
	err = m.own.Exec(t.Context(), "dev-worker", provider.Command{Args: []string{"complain", "loudly", "a lot"}})
	if err == nil || !strings.Contains(err.Error(), "cannot run complain loudly in dev-worker") || !strings.Contains(err.Error(), "last words") || !strings.Contains(err.Error(), "status 3") {
		t.Errorf("a command that fails: %v", err)
	}
	for _, raw := range []bool{false, true} {
		err := m.own.Exec(t.Context(), "dev-worker", provider.Command{Args: []string{"babble"}, Raw: raw})
		if err == nil || strings.Contains(err.Error(), "secret") == raw {
			t.Errorf("raw %t: %v", raw, err)
		}
	}
	if err := m.own.Exec(t.Context(), "dev-worker", provider.Command{Files: []provider.File{{Path: "/etc/a/b", Mode: 0o600, Content: []byte("text")}}}); err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(bytes.NewReader(m.engine.stdin["tar"]))
	header, err := r.Next()
	if err != nil || header.Name != "etc/a/b" || header.Mode != 0o600 {
		t.Fatalf("%+v, %v", header, err)
	}
	if text, err := io.ReadAll(r); err != nil || string(text) != "text" {
		t.Errorf("%q, %v", text, err)
	}
	for _, name := range []string{"dev-nobody", "", "../dev-worker"} {
		if err := m.own.Exec(t.Context(), name, provider.Command{Args: []string{"cat"}}); errs.Kind(err) == nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	out.Reset()
	if err := m.own.Describe(t.Context(), "dev-worker", &out); err != nil || !strings.Contains(out.String(), "dev-worker") || strings.Contains(out.String(), "secret") {
		t.Errorf("%v: %s", err, out.String())
	}
	out.Reset()
	if err := m.own.Describe(t.Context(), "", &out); err != nil || !strings.Contains(out.String(), `"mode"`) {
		t.Errorf("%v: %s", err, out.String())
	}
}

func TestImages(t *testing.T) {
	m := newMachine(t)
	if found, err := m.own.Present(t.Context(), podtest.ImageName); err != nil || found.ID != "fa4e" {
		t.Errorf("%+v, %v", found, err)
	}
	if found, err := m.own.Present(t.Context(), "nosuch:1"); err != nil || found.ID != "" {
		t.Errorf("%+v, %v", found, err)
	}
	if pulled, err := m.own.Ensure(t.Context(), podtest.ImageName, nil); err != nil || pulled {
		t.Errorf("%v, %v", pulled, err)
	}
	if _, err := m.own.Ensure(t.Context(), "nosuch:1", nil); !errors.Is(err, errs.NotFound) || !strings.Contains(err.Error(), "nosuch:1") {
		t.Errorf("%v", err)
	}
	var archive bytes.Buffer
	if err := m.own.Save(t.Context(), &archive, podtest.ImageName); err != nil || !strings.Contains(archive.String(), podtest.ImageName) {
		t.Errorf("%q, %v", archive.String(), err)
	}
}

func TestNetworkOfPluginsIsRefused(t *testing.T) {
	m := newMachine(t)
	m.net.mode = "cni"
	if _, err := m.own.EnsureNetwork(t.Context(), "kind"); !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "--network builtin") {
		t.Errorf("%v", err)
	}
	m.net.mode, m.net.NotReady = "builtin", errors.New("no bridge today")
	if _, err := m.own.EnsureNetwork(t.Context(), "kind"); !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "no bridge today") {
		t.Errorf("%v", err)
	}
}

func TestChoose(t *testing.T) {
	n := provider.Network{Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/29"), netip.MustParsePrefix("fd00::/120")}}
	taken := map[netip.Addr]bool{addr("10.0.0.5"): true}
	for _, want := range []string{"10.0.0.6,fd00::ff", "10.0.0.4,fd00::fe", "10.0.0.3,fd00::fd", "10.0.0.2,fd00::fc"} {
		if got, err := choose(n, "n", taken); err != nil || join(got) != want {
			t.Errorf("%v, %v; want %s", got, err, want)
		}
	}
	if got, err := choose(n, "n", taken); !errors.Is(err, errs.Exhausted) {
		t.Errorf("%v, %v", got, err)
	}
	for subnet, want := range map[string]string{"10.160.4.0/22": "10.160.7.254", "10.0.0.0/8": "10.0.255.255", "fd00::/64": "fd00::ffff"} {
		if got := highest(netip.MustParsePrefix(subnet)); got.String() != want {
			t.Errorf("%s: %s, want %s", subnet, got, want)
		}
	}
}

func TestResolvers(t *testing.T) {
	for name, c := range map[string]struct {
		etc, resolved, want string
	}{
		"the host's":       {"nameserver 9.9.9.9\nsearch a b\noptions ndots:2\n", "nameserver 8.8.8.8\n", "[9.9.9.9] [a b] [ndots:2]"},
		"a stub":           {"nameserver 127.0.0.53\n", "nameserver 8.8.8.8\nnameserver fe80::1%eth0\n", "[8.8.8.8] [] []"},
		"loopback alone":   {"nameserver ::1\nsearch a\n", "", "[10.0.0.1] [a] []"},
		"nothing":          {"", "", "[10.0.0.1] [] []"},
		"both of loopback": {"nameserver 127.0.0.53\nsearch a\n", "nameserver 127.0.0.1\n", "[10.0.0.1] [a] []"},
	} {
		host := fstest.MapFS{}
		for file, text := range map[string]string{"etc/resolv.conf": c.etc, "run/systemd/resolve/resolv.conf": c.resolved} {
			if text != "" {
				host[file] = &fstest.MapFile{Data: []byte(text)}
			}
		}
		got := dns(host, addr("10.0.0.1"))
		if text := strings.Join([]string{bracket(got.Servers), bracket(got.Searches), bracket(got.Options)}, " "); text != c.want {
			t.Errorf("%s: %s, want %s", name, text, c.want)
		}
	}
}

func bracket(words []string) string { return "[" + strings.Join(words, " ") + "]" }

// TestDamagedRecord: an unreadable record is reported with its path, and does not hide other nodes.
func TestDamagedRecord(t *testing.T) {
	m := newMachine(t)
	dir := m.own.nodeDir("dev-worker")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	m.wantNodes("")
	if err := os.WriteFile(filepath.Join(dir, recordName), []byte(`{"spec":{"name":"another"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := m.own.List(t.Context(), ""); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("%v", err)
	}
	if err := os.Remove(filepath.Join(dir, recordName)); err != nil {
		t.Fatal(err)
	}
	if err := m.create(spec("dev-worker")); err != nil {
		t.Errorf("over what a create that was killed left: %v", err)
	}
}

// TestHelpers: containers beside the nodes are listed like nodes.
func TestHelpers(t *testing.T) {
	m := newMachine(t)
	for _, role := range []string{config.BalancerRole, plan.RegistryRole} {
		helper := spec("dev-" + role)
		helper.Role, helper.Labels[plan.LabelRole] = role, role
		helper.Privileged, helper.Command, helper.Ports = false, []string{"serve"}, nil
		if err := m.create(helper); err != nil {
			t.Fatal(err)
		}
	}
	m.wantNodes("dev", "dev-external-load-balancer running 10.99.0.2", "dev-registry running 10.99.0.3")
	if all, err := m.own.List(t.Context(), "dev"); err != nil || len(all[0].Stable()) > 0 {
		t.Errorf("addresses of a balancer that stay: %v, %v", all, err)
	}
	registry := spec(plan.RegistryName)
	registry.Labels[plan.LabelCluster] = plan.RegistryGroup
	registry.Privileged, registry.Command, registry.Ports = false, []string{"serve"}, nil
	if err := m.create(registry); err != nil {
		t.Fatal(err)
	}
	if got := m.hosts("dev-registry"); !strings.Contains(got, "\tberth-registry\n") {
		t.Errorf("the registry that all clusters share is not in the hosts of one:\n%s", got)
	}
	if got := m.hosts(plan.RegistryName); strings.Contains(got, "dev-") {
		t.Errorf("nodes of a cluster in the hosts of the registry:\n%s", got)
	}
	if err := m.own.Stop(t.Context(), plan.RegistryName); err != nil {
		t.Fatal(err)
	}
	if got := m.hosts("dev-registry"); strings.Contains(got, "berth-registry") {
		t.Errorf("hosts lead to an address that nobody has or somebody else:\n%s", got)
	}
	if err := m.own.DeleteCluster(t.Context(), "dev"); err != nil {
		t.Error(err)
	}
	m.wantNodes("dev")
}
