//go:build e2e

package e2e

import (
	"os"
	"testing"
	"time"

	"github.com/berthrun/berth/test/harness/churn"
)

// TestKubeletChurn has a kubelet run pods of all kinds while everything on the node is restarted.
// Half of the time the kubelet uses berth's events, half of the time lists.
func TestKubeletChurn(t *testing.T) {
	opts := churn.Options{
		Seed: churn.Seed(t), Time: churn.Time(t, 6*time.Minute) / 2, Pods: 6, Only: os.Getenv("BERTH_CHURN_ONLY"),
	}
	t.Run("lists", func(t *testing.T) { churn.Run(t, opts) })
	opts.Evented = true
	t.Run("events", func(t *testing.T) { churn.Run(t, opts) })
}
