package cluster

import (
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/cluster/provider/hostcheck"
)

// TestToldOnce: a warning about the host is shown to each user once. Other warnings are shown every
// time.
func TestToldOnce(t *testing.T) {
	f := clustertest.New(t)
	c, steps := clusters(f)
	f.Unmet = []hostcheck.UnmetRequirement{hostcheck.Warning("old cgroups", "boot"), hostcheck.Warning("few files", "sysctl")}
	f.Unmet[0].Once = "old"
	told := map[string]bool{}
	c.FirstTime = func(what string) bool {
		first := !told[what]
		told[what] = true
		return first
	}
	for _, want := range []int{1, 1} {
		if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, "")}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Delete(t.Context(), "dev"); err != nil {
			t.Fatal(err)
		}
		all := strings.Join(*steps, "\n")
		if got := strings.Count(all, "warning: old cgroups"); got != want {
			t.Errorf("%d times in\n%s", got, all)
		}
	}
	if got := strings.Count(strings.Join(*steps, "\n"), "warning: few files"); got != 2 {
		t.Errorf("the other is told %d times", got)
	}
}

// TestOnlyNode: service load balancers may send traffic to the only node, as with kind.
func TestOnlyNode(t *testing.T) {
	const unlabel = `PATCH dev-control-plane {"metadata":{"labels":{"node.kubernetes.io/exclude-from-external-load-balancers":null}}}`
	for text, unlabeled := range map[string]bool{"": true, twoWorkers: false} {
		f := clustertest.New(t)
		clusters, _ := clusters(f)
		if _, err := clusters.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, text)}); err != nil {
			t.Fatal(err)
		}
		if got := slices.Contains(f.Changed, unlabel); got != unlabeled {
			t.Errorf("%q: %q", text, f.Changed)
		}
	}
}

// TestNetworkPolicies: berth's network of pods gets what enforces policies, and no other one does. A
// warning says so if nodes cannot enforce them, and the cluster is created.
func TestNetworkPolicies(t *testing.T) {
	const warning = "warning: NetworkPolicy objects have no effect"
	for _, c := range []struct {
		text, fails     string
		kindest         bool
		enforces, warns bool
	}{
		{text: "", enforces: true},
		{text: twoWorkers, enforces: true},
		{text: "networking: {disableDefaultCNI: true}\n"},
		{text: "", kindest: true},
		{text: "", fails: "berth net policy --check", warns: true},
	} {
		f := clustertest.New(t)
		if c.kindest {
			f = kindest(t, "dev-control-plane")
		}
		f.FailOn = c.fails
		clusters, steps := clusters(f)
		if _, err := clusters.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, c.text)}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(f.Files["dev-control-plane:applied"], "berth-net-policy"); got != c.enforces {
			t.Errorf("%+v: enforces %v", c, got)
		}
		warns := slices.ContainsFunc(*steps, func(step string) bool { return strings.HasPrefix(step, warning) })
		if warns != c.warns {
			t.Errorf("%+v: warns %v in %q", c, warns, *steps)
		}
	}
}
