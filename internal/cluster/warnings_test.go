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

// TestOnlyNode: service load balancers may send traffic to the only node, as with kind. A warning
// says that network policies have no effect.
func TestOnlyNode(t *testing.T) {
	const unlabel = `PATCH dev-control-plane {"metadata":{"labels":{"node.kubernetes.io/exclude-from-external-load-balancers":null}}}`
	const warning = "warning: NetworkPolicy objects have no effect"
	for _, c := range []struct {
		text             string
		kindest          bool
		unlabeled, warns bool
	}{
		{"", false, true, true},
		{twoWorkers, false, false, true},
		{"networking: {disableDefaultCNI: true}\n", false, true, false},
		{"", true, true, false},
	} {
		f := clustertest.New(t)
		if c.kindest {
			f = kindest(t, "dev-control-plane")
		}
		clusters, steps := clusters(f)
		if _, err := clusters.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, c.text)}); err != nil {
			t.Fatal(err)
		}
		if got := slices.Contains(f.Changed, unlabel); got != c.unlabeled {
			t.Errorf("%q: %q", c.text, f.Changed)
		}
		warnings := 0
		for _, step := range *steps {
			if strings.HasPrefix(step, warning) && !strings.Contains(step, "\n") {
				warnings++
			}
		}
		if (warnings == 1) != c.warns || warnings > 1 {
			t.Errorf("%q, kindest %v: %d warnings in %q", c.text, c.kindest, warnings, *steps)
		}
	}
}
