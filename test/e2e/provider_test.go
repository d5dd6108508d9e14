//go:build e2e

package e2e

import (
	"bytes"
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

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/provider/command"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
)

// podmanConf keeps all of a podman below one directory. It requests nothing that a host without
// CAP_SYS_RESOURCE cannot give.
const podmanConf = `[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
static_dir = "@DIR@/static"
tmp_dir = "@DIR@/tmp"
volume_path = "@DIR@/volumes"
[network]
network_backend = "netavark"
network_config_dir = "@DIR@/networks"
`

// providerImage is systemd on Debian: all that a provider needs of a node.
const providerImage = "localhost/berth/provider-test:1"

// podman puts a podman of the test's own into PATH, with a node image.
func podman(t *testing.T) {
	t.Helper()
	image, err := filepath.Abs("../../out/systemd/root")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(image); err != nil {
		t.Fatalf("the image is not made: run test/systemd/image.sh: %v", err)
	}
	podmanOnly(t)
	pack := exec.CommandContext(t.Context(), "tar", "-C", image, "--exclude=./var/cache/apt/archives", "-c", ".")
	// A host has one tty1, for which all nodes would compete: node images mask its getty.
	load := exec.CommandContext(t.Context(), "podman", "import", "-c", `CMD ["/sbin/init", "systemd.mask=getty@tty1.service"]`, "-", providerImage)
	if load.Stdin, err = pack.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := pack.Start(); err != nil {
		t.Fatal(err)
	}
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("podman import: %v\n%s", err, out)
	}
	if err := pack.Wait(); err != nil {
		t.Fatal(err)
	}
}

// podmanOnly puts a podman of the test's own into PATH. No other process uses its storage, networks
// and network namespace. It returns the name of the namespace.
func podmanOnly(t *testing.T) (namespace string) {
	t.Helper()
	require.Root(t)
	program := require.Binary(t, "podman")
	require.Binary(t, "runc")
	dir := t.TempDir()
	namespace = fmt.Sprintf("berth-provider-%d", os.Getpid())
	host(t, "ip", "netns", "add", namespace)
	t.Cleanup(func() { host(t, "ip", "netns", "del", namespace) })
	host(t, "ip", "-n", namespace, "link", "set", "lo", "up")
	for name, text := range map[string]string{
		"containers.conf": podmanConf,
		"storage.conf":    "[storage]\ndriver = \"overlay\"\ngraphroot = \"@DIR@/storage\"\nrunroot = \"@DIR@/run\"\n",
		"podman":          "#!/bin/sh\nexec nsenter --net=/run/netns/" + namespace + " " + program + " \"$@\"\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.ReplaceAll(text, "@DIR@", dir)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("CONTAINERS_CONF", filepath.Join(dir, "containers.conf"))
	t.Setenv("CONTAINERS_STORAGE_CONF", filepath.Join(dir, "storage.conf"))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Cleanup(func() {
		host(t, "podman", "rm", "-fa", "-t", "0")
		host(t, "podman", "rmi", "-fa")
		// podman's cgroups stay, and one in use cannot be removed. It leaves files where a
		// hierarchy is not mounted.
		for _, pattern := range []string{"libpod_parent/conmon/tasks", "libpod_parent/conmon", "libpod_parent"} {
			left, _ := filepath.Glob("/sys/fs/cgroup/*/" + pattern)
			for _, path := range left {
				_ = os.Remove(path)
			}
		}
	})
	return namespace
}

// host runs a command, for what a test creates and removes.
func host(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestNodesOfPodman(t *testing.T) {
	podman(t)
	ctx := t.Context()
	e, err := provider.Open(ctx, "podman", provider.Options{Env: command.Host()})
	if err != nil {
		t.Fatal(err)
	}
	if found, err := e.Present(ctx, providerImage); err != nil || found.ID == "" {
		t.Fatalf("the image is not found: %+v, %v", found, err)
	}
	if _, err := e.Ensure(ctx, "localhost/berth/absent:1", nil); err == nil || !strings.Contains(err.Error(), "not present") {
		t.Errorf("an absent image: %v", err)
	}
	network, err := e.EnsureNetwork(ctx, "kind")
	if err != nil || !network.Made || !network.StableV4 || !network.StableV6 {
		t.Fatalf("%+v, %v", network, err)
	}
	if again, err := e.EnsureNetwork(ctx, "kind"); err != nil || again.Made {
		t.Errorf("%+v, %v", again, err)
	}

	request := provider.Request{Network: network, Specs: specs(t, e.PlanHost(network), "e2e")}
	begun := time.Now()
	if err := e.Create(ctx, request); err != nil {
		t.Fatal(err)
	}
	t.Logf("two nodes were up after %s", time.Since(begun).Round(10*time.Millisecond))
	before := nodes(t, e, "e2e", 2)
	if at, err := before[0].Endpoint(6443); err != nil || !at.Addr().IsLoopback() {
		t.Errorf("the API is at %v, %v", at, err)
	}
	t.Run("inside", func(t *testing.T) { inside(t, e, before) })
	t.Run("failures", func(t *testing.T) { failures(t, e, network) })

	links := func() (all []string) {
		for _, name := range []string{"e2e-control-plane", "e2e-worker"} {
			all = append(all, run(t, e, name, "cat", "/sys/class/net/eth0/address"))
		}
		return all
	}
	linksBefore := links()

	// As after a reboot of the host, in another order.
	if err := e.Stop(ctx, "e2e-control-plane", "e2e-worker"); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes(t, e, "e2e", 2) {
		if n.Running || !n.IPv4.IsValid() {
			t.Errorf("stopped: %+v", n)
		}
	}
	for _, name := range []string{"e2e-worker", "e2e-control-plane"} {
		if err := e.Start(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	for i, n := range nodes(t, e, "e2e", 2) {
		if !n.Running || n.IPv4 != before[i].IPv4 || n.IPv6 != before[i].IPv6 || fmt.Sprint(n.Ports) != fmt.Sprint(before[i].Ports) {
			t.Errorf("after a restart: %+v\nbefore: %+v", n, before[i])
		}
	}
	// Neighbours cache the addresses for longer than a restart takes.
	if got := links(); !slices.Equal(got, linksBefore) {
		t.Errorf("link addresses after a restart: %q; before: %q", got, linksBefore)
	}
	if got := run(t, e, "e2e-worker", "cat", "/var/kept"); got != "kept" {
		t.Errorf("/var has lost what was there: %q", got)
	}

	for range 2 {
		if err := e.DeleteCluster(ctx, "e2e"); err != nil {
			t.Error(err)
		}
		if err := e.RemoveNetwork(ctx, "kind"); err != nil {
			t.Error(err)
		}
	}
	for _, left := range []string{host(t, "podman", "ps", "-aq"), host(t, "podman", "volume", "ls", "-q"), host(t, "podman", "network", "ls", "-q", "--filter", "name=kind")} {
		if left != "" {
			t.Errorf("left: %s", left)
		}
	}
}

// specs are a control plane and a worker of the test's image.
func specs(t *testing.T, h plan.Host, name string) []provider.Spec {
	t.Helper()
	modules := t.TempDir()
	text := fmt.Sprintf(`{"apiVersion":"berth.run/v1alpha1","kind":"Cluster","name":%q,"networking":{"ipFamily":"dual"},"nodes":[
{"image":%q,"extraMounts":[{"hostPath":%q,"containerPath":"/lib/modules"}]},
{"role":"worker","image":%q,"extraMounts":[{"hostPath":%q,"containerPath":"/lib/modules"}]}]}`, name, providerImage, modules, providerImage, modules)
	c, err := config.Load("f", []byte(text), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p := plan.Make(c, h)
	release, err := p.PickPorts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	release()
	var all []provider.Spec
	for _, made := range p.Containers {
		all = append(all, provider.Spec{Container: made})
	}
	return all
}

func nodes(t *testing.T, e *provider.CLI, cluster string, want int) []provider.Node {
	t.Helper()
	all, err := e.List(t.Context(), cluster)
	if err != nil || len(all) != want {
		t.Fatalf("nodes of %s: %+v, %v; want %d", cluster, all, err, want)
	}
	return all
}

func run(t *testing.T, e *provider.CLI, name string, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := e.Exec(t.Context(), name, provider.Command{Args: args, Stdout: &out}); err != nil {
		t.Error(err)
	}
	return strings.TrimSpace(out.String())
}

// inside checks commands and files in a node.
func inside(t *testing.T, e *provider.CLI, all []provider.Node) {
	ctx := t.Context()
	for _, n := range all {
		if got := run(t, e, n.Name, "systemctl", "is-system-running", "--wait"); got != "running" {
			t.Errorf("systemd of %s is %q", n.Name, got)
		}
		got := run(t, e, n.Name, "hostname", "-I")
		for _, address := range []netip.Addr{n.IPv4, n.IPv6} {
			if !strings.Contains(got, address.String()) {
				t.Errorf("%s has %q, and not %s", n.Name, got, address)
			}
		}
	}
	if got := run(t, e, "e2e-worker", "getent", "ahostsv4", "e2e-control-plane"); !strings.Contains(got, all[0].IPv4.String()) {
		t.Errorf("the worker finds the control plane at %q", got)
	}
	files := []provider.File{{Path: "/var/kept", Content: []byte("kept")}, {Path: "/run/a/b/run", Mode: 0o755, Content: []byte("#!/bin/sh\ncat; echo $A; echo err >&2; exit 3\n")}}
	if err := e.Exec(ctx, "e2e-worker", provider.Command{Files: files}); err != nil {
		t.Fatal(err)
	}
	var out, words bytes.Buffer
	err := e.Exec(ctx, "e2e-worker", provider.Command{Args: []string{"/run/a/b/run"}, Env: map[string]string{"A": "b c"}, Stdin: strings.NewReader("in "), Stdout: &out, Stderr: &words})
	failed := (*command.Error)(nil)
	if !errors.As(err, &failed) || failed.Code != 3 || out.String() != "in b c\n" || words.String() != "err\n" {
		t.Errorf("%v; %q, %q", err, out.String(), words.String())
	}
	out.Reset()
	if err := e.Logs(ctx, "e2e-worker", &out); err != nil || !strings.Contains(out.String(), "Reached target") {
		t.Errorf("%v; %s", err, out.String())
	}
	if options := run(t, e, "e2e-worker", "findmnt", "-no", "OPTIONS", "/var"); strings.Contains(options, "nodev") || strings.Contains(options, "nosuid") {
		t.Errorf("/var is mounted %s", options)
	}
}

// failures: nothing is left of a Create that fails, and the other cluster does not change.
func failures(t *testing.T, e *provider.CLI, network provider.Network) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	request := provider.Request{Network: network, Specs: specs(t, e.PlanHost(network), "e2e")}
	if err := e.Create(ctx, request); !errors.Is(err, errs.Exists) {
		t.Errorf("the same once more: %v", err)
	}
	request.Specs = specs(t, e.PlanHost(network), "other")
	request.Specs[1].Image = "localhost/berth/absent:1"
	if err := e.Create(ctx, request); err == nil || !strings.Contains(err.Error(), "cannot create other-worker") {
		t.Errorf("an absent image: %v", err)
	}
	nodes(t, e, "other", 0)
	request.Specs = specs(t, e.PlanHost(network), "other")
	request.Done = func(string) { cancel() }
	if err := e.Create(ctx, request); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	} else if err == nil {
		// Both were up at the same time.
		if err := e.DeleteCluster(t.Context(), "other"); err != nil {
			t.Error(err)
		}
	}
	nodes(t, e, "other", 0)
	nodes(t, e, "e2e", 2)
	if left := host(t, "podman", "volume", "ls", "-q"); strings.Contains(left, "other") {
		t.Errorf("volumes are left: %s", left)
	}
}
