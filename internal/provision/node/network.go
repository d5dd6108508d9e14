package node

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/cniconf"
	"github.com/berthrun/berth/internal/provision/node/facts"
	"github.com/berthrun/berth/internal/provision/node/runtimeconf"
	"github.com/berthrun/berth/internal/provision/tasks"
)

const (
	kubenetTemplatePath = facts.OwnDir + "/kubenet.conflist.template"
	kubenetConf         = "10-berth-kubenet.conflist"
)

// pluginsFromPackage reports whether the distribution's CNI plugins are wanted.
func (b *builder) pluginsFromPackage() bool {
	return len(b.n.Network.Plugins) == 0 && b.n.Network.Mode != "builtin" && b.rt.socket != "" && !b.n.Runtime.SkipInstall
}

// cniBinDir is the directory of the plugins that berth installs.
func (b *builder) cniBinDir() string {
	if b.n.Network.BinDir != "" {
		return b.n.Network.BinDir
	}
	return b.f.Distro.CNIBinDir
}

// pluginDirs sets the directories that the runtime looks into. A cluster's own network installs to
// the first; kubenet's plugins are where the package puts them.
func (b *builder) pluginDirs() {
	b.cniDirs = []string{b.cniBinDir()}
	pkg := b.f.Distro.CNIPackageDir
	if pkg == "" || pkg == b.cniDirs[0] || !b.pluginsFromPackage() {
		return
	}
	b.cniDirs = append(b.cniDirs, pkg)
	if b.n.Network.Mode == "kubenet" {
		slices.Reverse(b.cniDirs)
	}
	if b.rt.name == "containerd" && runtimeconf.OnePluginDir(b.rt.version) {
		b.onePluginDir()
	}
}

// onePluginDir leaves one of the directories: the first that has the plugins of the network, unless
// the node file names one. Without a network yet it is the one that the network will install to.
func (b *builder) onePluginDir() {
	dirs := b.cniDirs
	b.cniDirs = dirs[:1]
	if b.n.Network.Mode != "cni" || b.n.Network.BinDir != "" || b.f.CNI.File == "" {
		return
	}
	var lacks []string
	for _, dir := range dirs {
		has := b.f.CNIPrograms[dir]
		if dir == b.f.Distro.CNIPackageDir {
			has = append(cniconf.Reference(), has...) // also before the package is installed
		}
		// containerd runs loopback itself, in each pod.
		missing := slices.DeleteFunc(append(slices.Clone(b.f.CNI.Plugins), "loopback"), func(plugin string) bool { return slices.Contains(has, plugin) })
		if len(missing) == 0 {
			b.cniDirs = []string{dir}
			return
		}
		verb := "is"
		if len(missing) > 1 {
			verb = "are"
		}
		lacks = append(lacks, fmt.Sprintf("%s %s not in %s", strings.Join(missing, ", "), verb, dir))
	}
	b.fault(errs.NotFound, "network.binDir", "%s wants plugins that are in no single directory: %s. %s %s looks into one directory: "+
		"install all of them into one, and name it here; an archive in network.plugins goes to %s", b.f.CNI.File, strings.Join(lacks, ", and "), b.rt.name, b.rt.version, dirs[0])
}

// cniPlugins installs plugins from assets.
func (b *builder) cniPlugins() {
	for i, asset := range b.ofArch(b.n.Network.Plugins) {
		why := fmt.Sprintf("network.plugins[%d]", i)
		name := asset.Name
		if name == "" {
			name = path.Base(asset.Source)
		}
		b.before(tasks.Asset{
			M:   provision.Meta{Why: why, Needs: slices.Clone(b.installed)},
			Ref: assetRef(name, asset),
			Pick: []tasks.Pick{{
				What: "CNI plugins", Layouts: [][]string{{"opt/cni/bin/*"}, {"cni-plugins/*"}, {"cri-o/cni-plugins/*"}, {"bin/*"}, {"*"}},
				Except: notBinaries(), Dir: b.cniBinDir(), Min: 1,
			}},
		})
	}
}

// kubenetTemplate reports whether containerd makes the configuration from a template, when the
// kubelet passes the pods' CIDRs.
func (b *builder) kubenetTemplate() bool {
	return b.n.Network.Mode == "kubenet" && len(b.n.Network.PodCIDRs) == 0 && b.rt.name == "containerd"
}

// cniConfig writes kubenet's configuration.
func (b *builder) cniConfig() {
	if b.n.Network.Mode != "kubenet" {
		return
	}
	if b.rt.socket == "" {
		b.fault(errs.Unsupported, "network.mode", "docker's containers have docker's own network; want cni, or a kubelet or runtime.socket, for which berth serves CRI over docker")
		return
	}
	if b.kubenetTemplate() {
		ranges := `{{range $i, $range := .PodCIDRRanges}}{{if $i}}, {{end}}[{"subnet": "{{$range}}"}]{{end}}`
		routes := `{{range $i, $route := .Routes}}{{if $i}}, {{end}}{"dst": "{{$route}}"}{{end}}`
		b.before(tasks.File{M: b.forRuntime("network"), Path: kubenetTemplatePath, Content: b.kubenet(ranges, routes)})
		return
	}
	var ranges, routes []string
	for _, cidr := range b.n.Network.PodCIDRs {
		ranges = append(ranges, fmt.Sprintf(`[{"subnet": %q}]`, cidr))
		routes = append(routes, fmt.Sprintf(`{"dst": %q}`, everywhere(cidr)))
	}
	b.before(tasks.File{
		// The runtime watches the directory, so nothing restarts.
		M:    provision.Meta{Why: "network", Needs: slices.Clone(b.installed)},
		Path: path.Join(b.n.Network.ConfDir, kubenetConf), Content: b.kubenet(strings.Join(ranges, ", "), strings.Join(routes, ", ")),
	})
}

// kubenet is a configuration of ptp, host-local and portmap. A reboot clears the leases, as it ends
// the pods.
func (b *builder) kubenet(ranges, routes string) string {
	mtu := ""
	if b.n.Network.MTU > 0 {
		mtu = fmt.Sprintf("\n      \"mtu\": %d,", b.n.Network.MTU)
	}
	return `{
  "cniVersion": "1.0.0",
  "name": "kubenet",
  "plugins": [
    {
      "type": "ptp",` + mtu + `
      "ipam": {
        "type": "host-local",
        "dataDir": "/run/cni/networks",
        "ranges": [` + ranges + `],
        "routes": [` + routes + `]
      }
    },
    {
      "type": "portmap",
      "capabilities": {"portMappings": true}
    }
  ]
}
`
}

// everywhere is the default route of a CIDR's family.
func everywhere(cidr string) string {
	if is4(cidr) {
		return "0.0.0.0/0"
	}
	return "::/0"
}

// is4 reports whether a CIDR is IPv4. The node file's checks have accepted it.
func is4(cidr string) bool {
	p, err := netip.ParsePrefix(cidr)
	return err == nil && p.Addr().Is4()
}

const (
	masqueradeFile = facts.OwnDir + "/masquerade.nft"
	masqueradeUnit = "berth-masquerade.service"
)

// masquerade hides pods behind the node's address for destinations outside nonMasqueradeCIDRs, with
// two tables, one per family.
func (b *builder) masquerade() {
	if !b.n.Network.Masquerade.Enabled {
		return
	}
	var text strings.Builder
	var there []string
	for _, family := range []string{"ip", "ip6"} {
		if table := b.masqueradeTable(family); table != "" {
			text.WriteString(table)
			there = append(there, "/usr/sbin/nft list chain "+family+" berth-node postrouting | grep -q masquerade")
		}
	}
	if text.Len() == 0 {
		return
	}
	file := tasks.File{
		M:    provision.Meta{Why: "network.masquerade", Needs: slices.Clone(b.installed), Restarts: []string{masqueradeUnit}},
		Path: masqueradeFile, Content: "#!/usr/sbin/nft -f\n# Made by `berth node` from the node file. Changes here are undone; put them there.\n" + text.String(),
	}
	b.before(file)
	remove := `/bin/sh -c 'for family in ip ip6; do /usr/sbin/nft delete table $$family berth-node 2>/dev/null; done; true'`
	yes := true
	b.before(tasks.Unit{
		M:    provision.Meta{Why: "network.masquerade", Needs: []string{file.ID()}},
		Name: masqueradeUnit, Enable: &yes, Running: tasks.Started, Made: []string{"/bin/sh", "-c", strings.Join(there, " && ")},
		Content: unitText(
			// A firewall service that restarts or reloads may flush all rules: ours are loaded
			// again after it.
			section{"Unit", []string{
				"Description=IP masquerade of pods", "After=nftables.service firewalld.service network-pre.target", "PartOf=nftables.service",
				"ReloadPropagatedFrom=nftables.service firewalld.service",
				beforeRuntimes,
			}},
			section{"Service", []string{
				"Type=oneshot", "RemainAfterExit=yes", "ExecStart=/usr/sbin/nft -f " + masqueradeFile,
				"ExecReload=/usr/sbin/nft -f " + masqueradeFile, "ExecStop=" + remove,
			}},
			installed()),
	})
}

// masqueradeTable is the table of one family; "" where nothing is masqueraded. The
// first two lines make the file the same whether or not the table is there.
func (b *builder) masqueradeTable(family string) string {
	var inside, pods []string
	for _, cidr := range b.n.Network.Masquerade.NonCIDRs {
		if is4(cidr) == (family == "ip") {
			inside = append(inside, cidr)
		}
	}
	for _, cidr := range b.n.Network.PodCIDRs {
		if is4(cidr) == (family == "ip") {
			pods = append(pods, cidr)
		}
	}
	none := len(b.n.Network.PodCIDRs) > 0 && len(pods) == 0
	if len(inside) == 0 || none || slices.ContainsFunc(inside, func(cidr string) bool { return strings.HasSuffix(cidr, "/0") }) {
		return ""
	}
	source := ""
	if len(pods) > 0 {
		source = fmt.Sprintf("\t\t%s saddr != { %s } return\n", family, strings.Join(pods, ", "))
	}
	multicast := map[string]string{"ip": "224.0.0.0/4", "ip6": "ff00::/8"}[family]
	return fmt.Sprintf(`
table %[1]s berth-node
delete table %[1]s berth-node
table %[1]s berth-node {
	chain postrouting {
		type nat hook postrouting priority 105; policy accept;
%[2]s		fib daddr type local return
		%[1]s daddr %[3]s return
		%[1]s daddr { %[4]s } return
		masquerade
	}
}
`, family, source, multicast, strings.Join(inside, ", "))
}
