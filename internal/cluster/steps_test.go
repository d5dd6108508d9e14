package cluster

import (
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/cluster/steps"
)

// TestStepsOfCreate: each job is listed before the steps that depend on it, whichever steps are
// left out.
func TestStepsOfCreate(t *testing.T) {
	for _, text := range []string{"", twoWorkers, threePlanes, "networking: {disableDefaultCNI: true}\n", "registry: {enabled: true, port: 0}\n"} {
		c, _ := clusters(clustertest.New(t))
		m := &createRun{builder: c.newBuilder(clustertest.Describe(t, text))}
		before := map[*steps.Job]bool{}
		for i, s := range m.steps() {
			if s.Skip {
				continue
			}
			for _, j := range s.After {
				if !before[j] {
					t.Errorf("%q: step %d, %q, depends on a job that does not come before it", strings.TrimSpace(text), i, s.Title)
				}
			}
			before[s.Job] = true
		}
	}
}
