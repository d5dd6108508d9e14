package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/cluster/images"
	"github.com/berthrun/berth/internal/cluster/logs"
	"github.com/berthrun/berth/internal/errs"
)

const threePlanes = "nodes: [{}, {}, {}, {role: worker}]\n"

// TestSeveralControlPlanes: the load balancer has all control planes before the first one starts.
// They join one after the other with the certificates of the first. The API is reached through the
// load balancer.
func TestSeveralControlPlanes(t *testing.T) {
	f := clustertest.New(t)
	c, steps := clusters(f)
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, threePlanes), Wait: time.Minute}); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(*steps, "Joining control planes and workers") {
		t.Errorf("steps %q", *steps)
	}
	const told = `{"ipv4":true,"ipv6":false,"servers":[{"name":"dev-control-plane","host":"10.89.0.3"},{"name":"dev-control-plane2","host":"10.89.0.4"},{"name":"dev-control-plane3","host":"10.89.0.5"}]}`
	if f.Balanced != told {
		t.Errorf("balanced %s", f.Balanced)
	}
	var order []string
	for _, line := range f.Ran {
		for word, short := range map[string]string{"rebalance": "balance", "kubeadm init --": "init", "kubeadm join": "join", "tar --extract": "authorities"} {
			if node, _, _ := strings.Cut(line, ":"); strings.Contains(line, word) && !strings.Contains(node, "worker") {
				order = append(order, short+" "+strings.TrimPrefix(node, "dev-"))
			}
		}
	}
	want := []string{
		"balance external-load-balancer", "init control-plane", "authorities control-plane2", "join control-plane2",
		"authorities control-plane3", "join control-plane3",
	}
	if !slices.Equal(order, want) {
		t.Errorf("%q, want %q", order, want)
	}
	if f.Files["dev-control-plane3:pki"] != "authorities" || !strings.Contains(f.Files["dev-control-plane2:/etc/berth/cluster/kubeadm.yaml"], "dev-external-load-balancer:6443") {
		t.Errorf("files of control planes: %q", f.Files)
	}
	for _, node := range []string{"dev-control-plane2", "dev-control-plane3"} {
		if !slices.ContainsFunc(f.Ran, func(line string) bool {
			return strings.HasPrefix(line, node+": ") && strings.HasSuffix(line, " berth.service")
		}) {
			t.Errorf("the runtime of %s was not started", node)
		}
	}
	dir := t.TempDir()
	collector := logs.Collector{Provider: f, Warn: c.Warn}
	if err := collector.Collect(t.Context(), "dev", dir); err != nil {
		t.Error(err)
	}
	for file, there := range map[string]bool{"haproxy.cfg": true, "serial.log": true, "kubelet.log": false} {
		if _, err := os.Stat(filepath.Join(dir, "dev-external-load-balancer", file)); (err == nil) != there {
			t.Errorf("%s of the load balancer: %v", file, err)
		}
	}
	f.Saved, f.IDs = clustertest.SavedImage(t), map[string]string{"app:1": strings.TrimPrefix(clustertest.ImageID(), "sha256:")}
	loader := images.Loader{Provider: f, Reporter: c.Reporter}
	if err := loader.Load(t.Context(), "dev", images.Options{Images: []string{"app:1"}}); err != nil || f.Files["dev-external-load-balancer:image"] != "" || f.Files["dev-control-plane3:image"] == "" {
		t.Errorf("load: %v", err)
	}
	if err := c.Stop(t.Context(), "dev"); err != nil {
		t.Fatal(err)
	}
	f.Ran = nil
	if err := c.Start(t.Context(), "dev", time.Minute); err != nil || f.Balanced != told {
		t.Errorf("%v; balanced %s", err, f.Balanced)
	}
	if found, err := c.Delete(t.Context(), "dev"); err != nil || !found || len(f.Nodes) > 0 {
		t.Errorf("%v, %v; left %v", found, err, f.Nodes)
	}
}

// TestBalancerByName: if addresses may change, the load balancer uses names, so that it works after
// a restart.
func TestBalancerByName(t *testing.T) {
	f := clustertest.New(t)
	f.Unstable = true
	c, steps := clusters(f)
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, threePlanes)}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(f.Balanced, `{"name":"dev-control-plane2","host":"dev-control-plane2"}`) {
		t.Errorf("balanced %s", f.Balanced)
	}
	if !strings.Contains(strings.Join(*steps, "\n"), "warning: containers on the network kind have other addresses") {
		t.Errorf("%q", *steps)
	}
}

// TestBalancerFails: the error has the end of the load balancer's log.
func TestBalancerFails(t *testing.T) {
	f := clustertest.New(t)
	f.FailOn = "/usr/local/bin/berth cluster in-node rebalance"
	c, _ := clusters(f)
	_, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, threePlanes)})
	if err == nil || !strings.Contains(err.Error(), "last words of dev-external-load-balancer:\n  log of dev-external-load-balancer") || len(f.Nodes) > 0 {
		t.Errorf("%v; left %v", err, f.Nodes)
	}
}

// TestRemoteEngine: a remote engine cannot have several control planes, because berth cannot pick
// free ports on another host.
func TestRemoteEngine(t *testing.T) {
	f := clustertest.New(t)
	f.FakeFacts.Remote = true
	c, _ := clusters(f)
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, threePlanes)}); !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "nodes: several control planes") || f.Calls > 0 {
		t.Errorf("%v after %d calls", err, f.Calls)
	}
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, twoWorkers)}); err != nil {
		t.Errorf("one control plane: %v", err)
	}
}
