package cluster

import (
	"context"
	"fmt"
	"os"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/provider/hostcheck"
	"github.com/berthrun/berth/internal/errs"
)

// checkProxy tells what this host lacks for the mode of kube-proxy.
func (m *making) checkProxy() []hostcheck.Finding {
	facts := m.Provider.Facts()
	if m.Cluster.Networking.KubeProxyMode != config.ProxyIPVS || facts.Remote {
		return nil
	}
	if found := hostcheck.IPVS(hostcheck.Host{Root: os.DirFS("/"), Rootless: facts.Rootless}); found != nil {
		return []hostcheck.Finding{*found}
	}
	return nil
}

// checkTools makes sure that an image of nodes has what a mode of kube-proxy runs. Berth's
// image makes that of kube-proxy of its own programs; kindest/node has a whole one.
func (m *making) checkTools(ctx context.Context, node, image string) error {
	if m.Cluster.Networking.KubeProxyMode != config.ProxyIPVS {
		return nil
	}
	if err := m.Provider.Exec(ctx, node, provider.Command{Args: []string{"test", "-x", "/usr/sbin/ipset"}}); err != nil {
		return fmt.Errorf("networking.kubeProxyMode is ipvs, and the image %s of %s has no ipset, which kube-proxy runs; make the image anew, with Debian's package ipset in --rootfs, or choose nftables: %w: %w", image, node, errs.Unsupported, err)
	}
	return nil
}
