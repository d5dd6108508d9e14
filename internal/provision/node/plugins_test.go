package node

import (
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/provision/node/facts"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// TestOnePluginDirectory: a containerd that looks into one directory looks into the one that has the
// plugins of the network, or that the package of plugins fills.
func TestOnePluginDirectory(t *testing.T) {
	const (
		ptp     = `{"plugins": [{"type": "ptp", "ipam": {"type": "host-local"}}, {"type": "portmap"}]}`
		calico  = `{"plugins": [{"type": "calico"}, {"type": "portmap"}]}`
		own     = "/opt/cni/bin/"
		pkg     = "/usr/lib/cni/"
		pkgLine = `bin_dir = '/usr/lib/cni'`
		ownLine = `bin_dir = '/opt/cni/bin'`
	)
	for name, c := range map[string]struct {
		runtime, network, conf string
		programs               []string
		want                   string
	}{
		"no network yet":             {"", "", "", nil, ownLine},
		"plugins of the package":     {"", "", ptp, nil, pkgLine},
		"that are installed":         {"", "", ptp, []string{pkg + "ptp", pkg + "host-local", pkg + "portmap", pkg + "loopback"}, pkgLine},
		"plugins of the network":     {"", "", calico, []string{own + "calico", own + "portmap", own + "loopback"}, ownLine},
		"both have them":             {"", "", ptp, []string{own + "ptp", own + "host-local", own + "portmap", own + "loopback"}, ownLine},
		"the file says where":        {"", "binDir: /opt/mine, ", ptp, nil, `bin_dir = '/opt/mine'`},
		"containerd takes both":      {`version: "2.2", skipInstall: true, `, "", calico, nil, "bin_dirs = "},
		"a network of the node file": {"", "", calico, nil, pkgLine},
		"a network of two":           {"", "", calico, []string{own + "calico"}, "network.binDir: /etc/cni/net.d/10-net.conflist wants plugins that are in no single directory"},
		"of which that one is named": {"", "", calico, []string{own + "calico"}, "portmap, loopback are not in /opt/cni/bin, and calico is not in /usr/lib/cni"},
	} {
		t.Run(name, func(t *testing.T) {
			h := ofVersion(t, false)
			put(t, h, "/usr/lib/systemd/systemd", "")
			if c.conf != "" {
				put(t, h, "/etc/cni/net.d/10-net.conflist", c.conf)
			}
			for _, program := range c.programs {
				put(t, h, program, "")
			}
			text := "runtime: {" + c.runtime + "name: containerd}\nnetwork: {" + c.network + "mode: cni}\n"
			if name == "a network of the node file" {
				text += "files: [{path: /etc/cni/net.d/05-own.conflist, content: '" + ptp + "'}]\n"
			}
			n := load(t, text)
			f, err := facts.Detect(t.Context(), h, n, "/usr/local/bin/berth", "")
			if err != nil {
				t.Fatal(err)
			}
			target, err := Build(n, f)
			got := ""
			if err != nil {
				got = err.Error()
			}
			for _, task := range target.Tasks {
				if file, ok := task.(tasks.File); ok && file.Path == "/etc/containerd/config.toml" {
					got = file.Content
				}
			}
			if !strings.Contains(got, c.want) {
				t.Errorf("want %s:\n%s", c.want, got)
			}
		})
	}
}
