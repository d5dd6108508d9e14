package nodefile

import (
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/registries"
)

func (c checker) registries() {
	registries.Check(c.Reader, "registries", c.n.Registries)
	for i, reg := range c.n.Registries {
		at := fmt.Sprintf("registries[%d]", i)
		c.accessFiles(at, reg.CA, reg.ClientCert, reg.ClientKey, reg.Credentials)
		switch c.n.Runtime.Name {
		case "crio":
			c.crioRegistry(at, reg)
		case "docker":
			c.dockerRegistry(at, reg)
		}
		for j, m := range reg.Mirrors {
			c.accessFiles(fmt.Sprintf("%s.mirrors[%d]", at, j), m.CA, m.ClientCert, m.ClientKey, m.Credentials)
		}
	}
}

// accessFiles checks the paths of the files that a server is reached with.
func (c checker) accessFiles(at string, ca []string, cert, key, credentials string) {
	for i, file := range ca {
		c.path(fmt.Sprintf("%s.ca[%d]", at, i), file)
	}
	c.path(at+".clientCert", cert)
	c.path(at+".clientKey", key)
	c.path(at+".credentials", credentials)
}

// crioRegistry refuses what registries.conf cannot say.
func (c checker) crioRegistry(at string, reg registries.Registry) {
	if reg.Host == "*" {
		c.Fault(at+".host", "crio has no entry for all registries; name each")
	}
	for j, m := range reg.Mirrors {
		at := fmt.Sprintf("%s.mirrors[%d]", at, j)
		if m.OverridePath {
			c.Fault(at+".overridePath", "crio always adds /v2; leave this out")
		}
		c.capabilities(at, m)
	}
}

func (c checker) network() {
	net := &c.n.Network
	pods := c.cidrs("network.podCIDRs", net.PodCIDRs)
	families := map[bool]bool{}
	for i, p := range pods {
		if p.IsValid() && families[p.Addr().Is4()] {
			c.Fault(fmt.Sprintf("network.podCIDRs[%d]", i), "%q: is a second one of its family; want one of each at most", net.PodCIDRs[i])
		}
		families[p.Addr().Is4()] = p.IsValid()
		if p.IsValid() && p.Bits() == 0 {
			c.Fault(fmt.Sprintf("network.podCIDRs[%d]", i), "%q: is every address; want those of this node, such as 10.244.1.0/24", net.PodCIDRs[i])
		}
	}
	c.cidrs("network.masquerade.nonMasqueradeCIDRs", net.Masquerade.NonCIDRs)
	c.conflict("network.masquerade.enabled", net.Masquerade.Enabled && net.Mode == "builtin", "berth's own bridge masquerades by itself; leave this out")
	switch net.Mode {
	case "builtin":
		switch name := c.n.Runtime.Name; {
		case name == "docker" && !c.n.BerthOverDocker():
			c.Fault("network.mode", "docker's containers have docker's own network; want cni, or a kubelet or runtime.socket, for which berth serves CRI over docker")
		case name != "berth" && name != "docker" && name != "":
			c.Fault("network.mode", "builtin is berth's own network, and %s has none; want cni or kubenet", name)
		}
	case "kubenet":
		if len(net.PodCIDRs) == 0 && c.n.Runtime.Name != "containerd" {
			c.Fault("network.podCIDRs", "is missing; want the addresses of this node's pods for mode kubenet (only containerd can wait for the kubelet's CIDRs)")
		}
	}
	if net.MTU != 0 && (net.MTU < 68 || net.MTU > 65535) {
		c.Fault("network.mtu", "%d: want 68 to 65535, or 0", net.MTU)
	}
	c.path("network.confDir", net.ConfDir)
	c.path("network.binDir", net.BinDir)
	c.assets("network.plugins", net.Plugins)
}

// cidrs checks a list of CIDRs; invalid entries are the zero Prefix.
func (c checker) cidrs(at string, list []string) []netip.Prefix {
	prefixes := make([]netip.Prefix, len(list))
	for i, text := range list {
		at := fmt.Sprintf("%s[%d]", at, i)
		p, err := netip.ParsePrefix(text)
		switch {
		case c.Broken(at):
		case err != nil:
			c.Fault(at, "%q: want a CIDR such as 10.244.0.0/24", text)
		case p.Masked() != p:
			c.Fault(at, "%q: has host bits set; the CIDR is %s", text, p.Masked())
		default:
			if j := slices.IndexFunc(prefixes[:i], func(o netip.Prefix) bool { return o.IsValid() && o.Overlaps(p) }); j >= 0 {
				c.Fault(at, "%q: overlaps %s; leave one of them out", text, prefixes[j])
			}
			prefixes[i] = p
		}
	}
	return prefixes
}

func (c checker) kernel() {
	for i, module := range c.n.Kernel.Modules {
		c.match(fmt.Sprintf("kernel.modules[%d]", i), module, `[A-Za-z0-9_-]+`, "the name of a module")
	}
	for _, key := range sortedKeys(c.n.Kernel.Sysctls) {
		at := pathIn("kernel.sysctls", key)
		c.match(at, key, `[a-z0-9_]+([./][A-Za-z0-9_@:/*-]+)+`, "a key such as net.ipv4.ip_forward")
	}
	for i, name := range c.n.Packages.Install {
		c.match(fmt.Sprintf("packages.install[%d]", i), name, `[A-Za-z0-9][A-Za-z0-9.+_:-]*(=[A-Za-z0-9.+~_:-]+)?`, "the name of a package, or NAME=VERSION")
	}
}

const accountName = `[a-z_][a-z0-9_-]{0,31}`

func (c checker) accounts() {
	groups, users := map[string]bool{}, map[string]bool{}
	for i, g := range c.n.Groups {
		at := fmt.Sprintf("groups[%d]", i)
		c.match(at+".name", g.Name, accountName, "small letters, digits, _ and -")
		c.twice(at+".name", g.Name, groups)
		c.id(at+".gid", g.GID)
	}
	for i, u := range c.n.Users {
		at := fmt.Sprintf("users[%d]", i)
		c.match(at+".name", u.Name, accountName, "small letters, digits, _ and -")
		c.twice(at+".name", u.Name, users)
		c.id(at+".uid", u.UID)
		c.match(at+".group", u.Group, accountName, "the name of a group")
		for j, group := range u.Groups {
			c.match(fmt.Sprintf("%s.groups[%d]", at, j), group, accountName, "the name of a group")
		}
		c.path(at+".home", u.Home)
		c.path(at+".shell", u.Shell)
		for field, path := range map[string]string{"home": u.Home, "shell": u.Shell} {
			if strings.Contains(path, ":") {
				c.Fault(at+"."+field, "%q: want a path without :, which /etc/passwd takes apart", path)
			}
		}
	}
}

func (c checker) twice(at, name string, seen map[string]bool) {
	if seen[name] {
		c.Fault(at, "%q: is there twice; leave one out", name)
	}
	seen[name] = true
}

func (c checker) id(at string, id *int) {
	if id != nil && (*id < 0 || *id > 4294967294) {
		c.Fault(at, "%d: want 0 to 4294967294", *id)
	}
}

func (c checker) files() {
	seen := map[string]bool{}
	for i, f := range c.n.Files {
		at := fmt.Sprintf("files[%d]", i)
		c.path(at+".path", f.Path)
		c.twice(at+".path", f.Path, seen)
		c.match(at+".mode", f.Mode, `0?[0-7]{3,4}`, `octal permissions such as "0644"`)
		c.match(at+".owner", f.Owner, accountName+`|\d+`, "a name or a number")
		c.match(at+".group", f.Group, accountName+`|\d+`, "a name or a number")
		if f.Source != nil {
			c.asset(at+".source", *f.Source)
			c.conflict(at+".content", f.Content != "", "conflicts with source; leave one of them out")
		}
		if f.Type != "file" {
			c.conflict(at+".content", f.Content != "", "is for a file; leave this out, or set type: file")
			c.conflict(at+".source", f.Source != nil, "is for a file; leave this out, or set type: file")
		}
		c.fileFields(at, f)
		if f.Type == "symlink" && f.Target == "" {
			c.Fault(at+".target", "is missing; want where the symlink points")
		}
		if f.Type != "symlink" {
			c.conflict(at+".target", f.Target != "", "is for a symlink; leave this out, or set type: symlink")
		}
		for j, unit := range f.Restarts {
			c.unitName(fmt.Sprintf("%s.restarts[%d]", at, j), unit)
		}
	}
}

func (c checker) unitName(at, name string) {
	c.match(at, name, `[A-Za-z0-9:_.@\\-]+\.(service|socket|timer|path|mount|automount|target|slice|swap)`, "a full name of a unit, such as chrony.service")
}

func (c checker) units() {
	seen := map[string]bool{}
	for i, u := range c.n.Units {
		at := fmt.Sprintf("units[%d]", i)
		c.unitName(at+".name", u.Name)
		c.twice(at+".name", u.Name, seen)
		if u.Content != "" && !strings.Contains(u.Content, "[") {
			c.Fault(at+".content", "has no section; want a unit file with one such as [Service]")
		}
		for _, name := range sortedKeys(u.DropIns) {
			c.match(pathIn(at+".dropIns", name), name, `[A-Za-z0-9_.@-]+\.conf`, "a file name that ends in .conf")
		}
	}
	hooks := map[string]bool{}
	for i, h := range c.n.Hooks {
		at := fmt.Sprintf("hooks[%d]", i)
		c.match(at+".name", h.Name, `[a-z0-9][a-z0-9-]{0,62}`, "small letters, digits and -")
		c.twice(at+".name", h.Name, hooks)
		if len(h.Command) > 0 && !filepath.IsAbs(h.Command[0]) {
			c.Fault(at+".command[0]", "%q: want an absolute path", h.Command[0])
		}
		if c.Has(at+".command") && len(h.Command) == 0 {
			c.Fault(at+".command", "is empty; want a program and its arguments")
		}
		for j, unit := range h.Requires {
			c.unitName(fmt.Sprintf("%s.requires[%d]", at, j), unit)
		}
	}
}

func (c checker) kubelet() {
	k := &c.n.Kubelet
	c.assets("kubelet.assets", k.Assets)
	c.path("kubelet.bootstrapKubeconfig", k.Bootstrap)
	c.path("kubelet.kubeconfig", k.Kubeconfig)
	c.path("kubelet.staticPodPath", k.ManifestsDir)
	for _, name := range sortedKeys(k.Flags) {
		c.match(pathIn("kubelet.flags", name), name, `[a-z0-9][a-z0-9-]*`, "the name of an option, without dashes")
	}
	c.kubeletFields()
	c.conflict("kubelet.config", k.Kubeadm && len(k.Config) > 0, "conflicts with kubelet.kubeadm, which writes the configuration; leave one of them out")
	c.conflict("kubelet.kubeconfig", k.Kubeadm && k.Kubeconfig != "", "conflicts with kubelet.kubeadm, which writes the kubeconfig; leave one of them out")
	c.conflict("kubelet.bootstrapKubeconfig", k.Kubeadm && k.Bootstrap != "", "conflicts with kubelet.kubeadm, which writes the kubeconfig; leave one of them out")
	if driver, ok := k.Config["cgroupDriver"]; ok {
		want := c.n.Runtime.CgroupDriver
		if want == "auto" {
			want = "systemd"
		}
		if driver != want {
			c.Fault("kubelet.config.cgroupDriver", "%v: the runtime's is %s, and a node with two kills its own pods; leave this out, and set runtime.cgroupDriver", driver, want)
		}
	}
	if _, ok := k.Config["containerRuntimeEndpoint"]; ok {
		c.Fault("kubelet.config.containerRuntimeEndpoint", "follows runtime.socket; leave this out, and set that")
	}
	if c.n.Crictl.Timeout < 0 {
		c.Fault("crictl.timeout", "%d: want 0 or more", c.n.Crictl.Timeout)
	}
}

func (c checker) images() {
	for i, image := range c.n.Images {
		at := fmt.Sprintf("images[%d]", i)
		c.sources(at, image.Source, image.Mirrors, image.Access)
		c.digest(at+".digest", image.Digest)
		if c.Has(at+".names") && len(image.Names) == 0 {
			c.Fault(at+".names", "is empty; name the images that the archive has")
		}
	}
}

func (c checker) proxy() {
	for at, text := range map[string]string{"proxy.http": c.n.Proxy.HTTP, "proxy.https": c.n.Proxy.HTTPS} {
		u, err := url.Parse(text)
		if text != "" && !c.Broken(at) && (err != nil || !slices.Contains([]string{"http", "https", "socks5"}, u.Scheme) || u.Host == "") {
			c.Fault(at, "%q: want a URL such as http://proxy.example:3128", text)
		}
	}
	for i, entry := range c.n.Proxy.NoProxy {
		c.match(fmt.Sprintf("proxy.noProxy[%d]", i), entry, `[^\s,"\\]+`, "one host, domain or CIDR")
	}
	c.match("logs.maxSize", c.n.Logs.MaxSize, `[1-9]\d*([KMG]i?)?`, "a size such as 10Mi")
	if c.n.Logs.MaxFile < 2 {
		c.Fault("logs.maxFiles", "%d: want 2 or more", c.n.Logs.MaxFile)
	}
}

func (c checker) boot() {
	drift := time.Duration(c.n.Boot.Drift)
	if drift > 0 && drift < time.Minute {
		c.Fault("boot.driftInterval", "%v: want 1m or more", drift)
	}
	c.conflict("boot.driftInterval", drift > 0 && !c.n.Boot.Enabled, "does nothing alone; set boot.enabled: true")
}

// FileMode is the mode of a file; valid after Load.
func (f File) FileMode() uint32 {
	if f.Mode == "" {
		if f.Type == "directory" {
			return 0o755
		}
		return 0o644
	}
	mode, _ := strconv.ParseUint(f.Mode, 8, 32) // checked by Load
	return uint32(mode)
}
