package changes

import (
	"fmt"
	"testing"

	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
)

// TestSurvivable: a change that would lose the state of the cluster is refused.
func TestSurvivable(t *testing.T) {
	existing := func(planes int, balanced bool) (all []provider.Node) {
		role := func(name, role string) provider.Node {
			return provider.Node{Name: name, Labels: map[string]string{plan.LabelRole: role}}
		}
		for i := range planes {
			all = append(all, role(fmt.Sprintf("dev-p%d", i), "control-plane"))
		}
		if balanced {
			all = append(all, role("dev-external-load-balancer", config.BalancerRole))
		}
		return append(all, role("dev-worker", "worker"))
	}
	after := clustertest.Describe(t, "nodes: [{name: new}, {role: worker}]\n")
	for _, c := range []struct {
		planes   int
		balanced bool
		changes  Changes
		ok       bool
	}{
		{1, false, Changes{Replace: []string{"dev-worker"}}, true},
		{1, false, Changes{Replace: []string{"dev-p0"}}, false},
		{1, true, Changes{Replace: []string{"dev-p0"}}, false},
		{1, true, Changes{Replace: []string{"dev-p0"}, Add: []string{"dev-new"}}, true},
		{1, true, Changes{Remove: []string{"dev-p0"}, Add: []string{"dev-new"}}, true},
		{1, false, Changes{Remove: []string{"dev-p0"}, Add: []string{"dev-new"}}, false},
		{2, true, Changes{Replace: []string{"dev-p0", "dev-p1"}}, true},
		{2, true, Changes{Remove: []string{"dev-p0"}, Replace: []string{"dev-p1"}}, false},
		{2, true, Changes{Remove: []string{"dev-p0", "dev-p1"}}, false},
		{3, true, Changes{Remove: []string{"dev-p0"}, Replace: []string{"dev-p1"}}, true},
	} {
		if err := survivable(c.changes, existing(c.planes, c.balanced), after); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
