package podlink_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/containernetworking/cni/pkg/version"

	"github.com/berthrun/berth/internal/network/cni/plugin"
	"github.com/berthrun/berth/internal/network/cni/plugin/podlink"
)

// hungIPAM is an IPAM plugin whose DEL ends only when it is killed.
type hungIPAM struct {
	version.PluginDecoder
	killed bool
}

func (h *hungIPAM) FindInPath(name string, _ []string) (string, error) {
	return "/nonesuch/" + name, nil
}

func (h *hungIPAM) ExecPlugin(ctx context.Context, _ string, _ []byte, environ []string) ([]byte, error) {
	if slices.Contains(environ, "CNI_COMMAND=DEL") {
		if _, bounded := ctx.Deadline(); bounded {
			<-ctx.Done()
			h.killed = true
		}
	}
	return nil, ctx.Err()
}

// TestReleaseEnds: the DEL of an IPAM plugin that hangs after an ADD that failed begins past the deadline of the ADD,
// and ends.
func TestReleaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ipam := &hungIPAM{}
		p := &plugin.Plugin{Type: "fake", Versions: version.All, Del: func(ctx context.Context, c *plugin.Call) error {
			cancel()
			podlink.Release(ctx, c, "hung")
			return nil
		}}
		env := []string{"CNI_COMMAND=DEL", "CNI_CONTAINERID=a", "CNI_IFNAME=eth0", "CNI_PATH=/nonesuch"}
		if _, err := p.Run(ctx, plugin.Environment{Exec: ipam, Env: env}, []byte(`{"cniVersion":"1.0.0","name":"net"}`)); err != nil {
			t.Error(err)
		}
		if !ipam.killed {
			t.Error("the DEL has no deadline of its own")
		}
	})
}
