package node

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/node/distro"
	"github.com/berthrun/berth/internal/provision/node/facts"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// packages installs what the distribution brings: the node's base, the runtime and CNI plugins if
// no assets are given, and the user's list.
func (b *builder) packages() {
	var list []provision.PackageVersion
	want := func(names ...distro.Package) {
		for _, name := range names {
			if pkg := b.f.Distro.Package(name); pkg != "" {
				list = append(list, provision.PackageVersion{Name: pkg})
			}
		}
	}
	if nodefile.On(b.n.Packages.Base) {
		want(distro.Kmod, distro.IPRoute, distro.UtilLinux, distro.Nftables, distro.Iptables, distro.Conntrack, distro.Socat, distro.Ethtool)
		if b.n.Kubelet.Enabled || b.n.Kubelet.Kubeadm {
			want(distro.Mount)
		}
		if len(b.n.Runtime.Assets) > 0 || b.rt.name == "berth" {
			want(distro.Seccomp, distro.LibAppArmor)
		}
		if b.f.SELinux {
			want(distro.SELinux)
		}
	}
	var hold []string
	if b.rt.packaged && !b.n.Runtime.SkipInstall && !b.f.Distro.Immutable {
		list = append(list, b.runtimePackages()...)
		hold = append([]string{b.rt.unit}, map[string][]string{"docker": {"docker.socket", "containerd.service"}}[b.rt.name]...)
	}
	if b.pluginsFromPackage() {
		want(distro.CNIPlugins)
	}
	if b.n.Logs.Rotate && b.rt.name != "docker" {
		want(distro.Logrotate)
	}
	for _, name := range b.n.Packages.Install {
		pkg, version, _ := strings.Cut(name, "=")
		list = append(list, provision.PackageVersion{Name: pkg, Version: version})
	}
	if len(b.n.Packages.Install) > 0 && b.f.Distro.Manager == "" {
		b.fault(errs.Unsupported, "packages.install", "%s installs no packages; leave this out", b.f.Distro.Name)
	}
	if len(list) == 0 || b.f.Distro.Manager == "" {
		return
	}
	slices.SortStableFunc(list, func(x, y provision.PackageVersion) int {
		if c := strings.Compare(x.Name, y.Name); c != 0 {
			return c
		}
		return strings.Compare(y.Version, x.Version) // the one with a version wins
	})
	list = slices.CompactFunc(list, func(x, y provision.PackageVersion) bool { return x.Name == y.Name })
	task := tasks.Packages{M: b.meta("packages", b.dockerGroup...), Install: list, Hold: hold}
	b.before(task)
	b.installed = append(b.installed, task.ID())
}

func (b *builder) runtimePackages() []provision.PackageVersion {
	var list []provision.PackageVersion
	for i, name := range b.rt.packages {
		pkg := b.f.Distro.Package(name)
		switch {
		case pkg == "" && i == 0:
			b.fault(errs.Unsupported, "runtime.assets", "%s has no package of %s; give assets, or install it and set runtime.skipInstall", b.f.Distro.Name, b.rt.name)
		case b.rt.name == "containerd" && packagedVersion(b.f.Distro, b.rt.name).Less(1, 6):
			b.fault(errs.Unsupported, "runtime.assets", "the package of %s is too old, want containerd 1.6 or newer; give assets", b.f.Distro.Name)
			return nil
		case pkg == "":
		case i == 0:
			list = append(list, provision.PackageVersion{Name: pkg, Version: b.packageVersion()})
		default:
			list = append(list, provision.PackageVersion{Name: pkg})
		}
	}
	return list
}

// packageVersion is the version that a package manager is asked for: a whole version
// of the distribution. A plain 1.7 or 1.7.27 only decides the configuration.
func (b *builder) packageVersion() string {
	if strings.ContainsAny(b.n.Runtime.Version, "-~+") {
		return b.n.Runtime.Version
	}
	return ""
}

// install brings the runtime's binaries from assets, or berth's own.
func (b *builder) install() {
	b.installSelf()
	if b.n.Runtime.SkipInstall {
		return
	}
	if b.f.Distro.Immutable && b.rt.name == "crio" {
		b.fault(errs.Unsupported, "runtime.name", "%s has no crio; want containerd or berth", b.f.Distro.Name)
		return
	}
	if b.f.Distro.Immutable && b.rt.name != "berth" && len(b.n.Runtime.Assets) > 0 {
		b.fault(errs.Unsupported, "runtime.assets", "%s brings its own %s, which cannot be replaced; leave assets out", b.f.Distro.Name, b.rt.name)
		return
	}
	assets := b.ofArch(b.n.Runtime.Assets)
	if len(b.n.Runtime.Assets) > 0 && len(assets) == 0 {
		b.fault(errs.Invalid, "runtime.assets", "none is for %s; give some with that arch, or without one", b.f.Arch)
	}
	ownRunc := slices.ContainsFunc(assets, func(a nodefile.Asset) bool { return classOf(a) == "runc" })
	main := 0
	for i, asset := range assets {
		if classOf(asset) == b.rt.name {
			main++
		}
		b.asset(fmt.Sprintf("runtime.assets[%d]", i), asset, b.picks(asset, ownRunc))
	}
	if len(assets) > 0 && main != 1 {
		b.fault(errs.Invalid, "runtime.assets", "%d of them are named for %s, want one; set name: %s on it", main, b.rt.name, b.rt.name)
	}
	if len(assets) > 0 && b.rt.name == "containerd" && b.rt.version.IsZero() {
		b.fault(errs.Invalid, "runtime.version", "is missing, and the names of the assets do not contain it; want one such as \"2.4.2\"")
	}
}

// installSelf copies the running binaries to where the distribution wants them.
func (b *builder) installSelf() {
	for _, self := range []struct {
		name   string
		binary facts.Binary
		want   bool
	}{
		{"berth", b.f.Berth, b.f.NeedsBerth(b.n)},
		{"berth-supervisor", b.f.Supervisor, facts.NeedsSupervisor(b.n)},
	} {
		if !self.want {
			continue
		}
		if self.binary.Digest == "" { // it already is where it belongs
			at := provision.Object{Kind: provision.KindFile, Name: path.Join(b.f.Distro.BinDir, self.name)}
			b.before(tasks.Held{M: b.meta("runtime"), Object: at})
			continue
		}
		b.asset("runtime", nodefile.Asset{Name: self.name, Source: self.binary.Path, Digest: self.binary.Digest},
			[]tasks.Pick{{What: self.name, Layouts: [][]string{{"*"}}, Dir: b.f.Distro.BinDir, As: self.name, Min: 1, Max: 1}})
	}
}

// ofArch drops the assets of other architectures.
func (b *builder) ofArch(assets []nodefile.Asset) []nodefile.Asset {
	return slices.DeleteFunc(slices.Clone(assets), func(a nodefile.Asset) bool { return a.Arch != "" && a.Arch != b.f.Arch })
}

// asset adds the task of one asset.
func (b *builder) asset(why string, asset nodefile.Asset, picks []tasks.Pick) {
	name := asset.Name
	if name == "" {
		name = path.Base(asset.Source)
	}
	restarts := []string{b.rt.unit}
	switch {
	case b.rt.name == "berth":
		restarts = []string{facts.SupervisorUnit, b.rt.unit}
	case name == "berth" && b.n.BerthOverDocker():
		restarts = []string{facts.BerthUnit}
	case name == "berth":
		restarts = nil // it is not the runtime here
	}
	task := tasks.Asset{
		M:    provision.Meta{Why: why, Restarts: restarts, Needs: slices.Clone(b.installed)},
		Ref:  assetRef(name, asset),
		Pick: picks,
	}
	b.before(task)
}

// assetRef is what is fetched of an asset.
func assetRef(name string, asset nodefile.Asset) provision.AssetRef {
	return provision.AssetRef{
		Name: name, Sources: append([]string{asset.Source}, asset.Mirrors...), Digest: asset.Digest, Access: provision.Access(asset.Access),
	}
}

// classOf finds from its name what an asset is; "" if the name does not say.
func classOf(asset nodefile.Asset) string {
	name := asset.Name
	if name == "" {
		name = path.Base(asset.Source)
	}
	name = strings.ToLower(name)
	for _, class := range []struct{ prefix, class string }{
		{"runc", "runc"},
		{"runsc", "gvisor"},
		{"containerd-shim", "shim"},
		{"gvisor", "gvisor"},
		{"crun", "crun"},
		{"cri-containerd", "containerd"},
		{"containerd", "containerd"},
		{"docker-", "docker"},
		{"docker", "docker"},
		{"cri-o", "crio"},
		{"crio", "crio"},
		{"crictl", "crictl"},
		{"cni-plugins", "cni"},
		{"berth", "berth"},
		{"kube", "kube"},
	} {
		if strings.HasPrefix(name, class.prefix) {
			return class.class
		}
	}
	return ""
}

// picks says which files of a runtime's asset go where. ownRunc: runc comes in an asset of its own,
// so the runc of an archive is left out.
func (b *builder) picks(asset nodefile.Asset, ownRunc bool) []tasks.Pick {
	bin := b.f.Distro.BinDir
	class := classOf(asset)
	if class == "runc" {
		return []tasks.Pick{{
			What: "runc", Layouts: [][]string{{"runc"}, {"runc.*", "runc-*"}, {"sbin/runc", "bin/runc"}, {"usr/local/sbin/runc", "usr/local/bin/runc", "usr/sbin/runc", "usr/bin/runc"}},
			Except: []string{"*.asc", "*.sha256sum"}, Dir: bin, As: "runc", Min: 1, Max: 1,
		}}
	}
	licences := tasks.Pick{
		What: "licences", Layouts: [][]string{{"LICENSE*", "NOTICE*", "COPYING*"}, {"*/LICENSE*", "*/NOTICE*", "*/COPYING*"}},
		Dir: path.Join(b.f.Distro.LicenseDir, "berth-node", path.Base(asset.Source)), Mode: 0o644,
	}
	if class != b.rt.name {
		one := tasks.Pick{What: "binaries", Layouts: [][]string{{"usr/local/bin/*"}, {"usr/bin/*"}, {"bin/*"}, {"*"}}, Except: notBinaries(), Dir: bin, Min: 1}
		if asset.Name != "" || class == "crun" || class == "gvisor" && strings.HasPrefix(path.Base(asset.Source), "runsc") {
			one.As, one.Max = asset.Name, 1
			if one.As == "" {
				one.As = map[string]string{"crun": "crun", "gvisor": "runsc"}[class]
			}
		}
		return []tasks.Pick{one, licences}
	}
	layouts := map[string][][]string{
		"containerd": {{"bin/*"}, {"usr/local/bin/*"}, {"usr/bin/*"}, {"docker/containerd*", "docker/ctr"}},
		"docker":     {{"docker/*"}, {"bin/*"}, {"usr/bin/*"}},
		"crio":       {{"cri-o/bin/*"}, {"bin/*"}, {"usr/local/bin/*"}},
		"berth":      {{"bin/berth", "bin/berth-supervisor"}, {"usr/local/bin/berth*"}, {"berth", "berth-supervisor"}, {"*/bin/berth*"}},
	}[class]
	all := []tasks.Pick{{What: "binaries of " + class, Layouts: layouts, Except: append(notBinaries(), "runc"), Dir: bin, Min: 1}}
	if (class == "containerd" || class == "docker") && !ownRunc {
		all = append(all, tasks.Pick{
			What: "runc", Layouts: [][]string{{"usr/local/sbin/runc"}, {"bin/runc"}, {"usr/local/bin/runc"}, {"usr/bin/runc", "usr/sbin/runc"}, {"docker/runc"}},
			Dir: bin, As: "runc", Min: 1, Max: 1,
		})
	}
	return append(all, licences)
}

func notBinaries() []string {
	return []string{"LICENSE*", "NOTICE*", "COPYING*", "README*", "*.md", "*.txt", "*.sha256", "*.sha512", "*.asc"}
}

// meta is the common case: a task with a reason.
func (b *builder) meta(why string, needs ...string) provision.Meta {
	return provision.Meta{Why: why, Needs: needs}
}

// data adds the trees that a runtime creates by itself, of images and of state that a reboot
// clears, so that a reset removes them if they did not exist before berth.
func (b *builder) data() {
	root := b.n.Runtime.Root
	usual := map[string]string{
		"berth": "/var/lib/berth", "containerd": "/var/lib/containerd", "crio": "/var/lib/containers", "docker": "/var/lib/docker",
	}[b.rt.name]
	if root == "" {
		root = usual
	}
	paths := append([]string{root}, map[string][]string{
		"containerd": {"/opt/containerd", "/var/lib/cni"}, "crio": {"/var/lib/crio", "/var/lib/cni", path.Join(b.n.Network.ConfDir, "cni.lock")}, "docker": {"/var/lib/containerd", "/opt/containerd", "/etc/docker/key.json"},
	}[b.rt.name]...)
	if b.n.Runtime.State != "" {
		paths = append(paths, b.n.Runtime.State)
	} else {
		paths = append(paths, map[string][]string{
			"berth": {"/run/berth"}, "containerd": {"/run/containerd"}, "crio": {"/run/crio"}, "docker": {"/run/docker", "/run/containerd"},
		}[b.rt.name]...)
	}
	if b.n.BerthOverDocker() {
		paths = append(paths, "/var/lib/berth", "/run/berth")
	}
	if b.n.Kubelet.Enabled {
		paths = append(paths, "/var/lib/kubelet")
	}
	for _, path := range paths {
		b.before(tasks.Data{M: b.meta("runtime"), Path: path})
	}
	if b.rt.name == "docker" && b.rt.packaged && !b.n.Runtime.SkipInstall && !b.f.Distro.Immutable {
		// They come with docker's packages, and another runtime of the node may own them later.
		for _, object := range []provision.Object{
			{Kind: provision.KindUnit, Name: "docker.socket"},
			{Kind: provision.KindUnit, Name: "containerd.service"},
			{Kind: provision.KindFile, Name: "/etc/containerd/config.toml"},
		} {
			b.before(tasks.Held{M: b.meta("runtime"), Object: object})
		}
	}
	// containerd creates them, docker's too; the network plugin uses them.
	b.held(b.n.Network.ConfDir)
	if b.rt.socket != "" {
		b.held("/run/netns")
	}
	if b.rt.name == "berth" {
		b.held("/run/nri") // its socket for plugins is there
	}
	if b.rt.name == "crio" {
		for _, dir := range append(slices.Clone(b.cniDirs), "/etc/crio/auth", "/etc/crio/policies", "/usr/share/containers/oci/hooks.d") {
			b.held(dir)
		}
	}
}

// held records a directory that the runtime creates and others put files in, with the directories
// above it that may be missing.
func (b *builder) held(dir string) {
	for ; !b.topDir(dir) && !slices.Contains(b.heldDirs, dir); dir = path.Dir(dir) {
		b.before(tasks.Held{M: b.meta("runtime"), Object: provision.Object{Kind: provision.KindDir, Name: dir}})
		b.heldDirs = append(b.heldDirs, dir)
	}
}

// topDir reports whether every machine has a directory, or the user created it.
func (b *builder) topDir(dir string) bool {
	return path.Dir(dir) == "/" || path.Dir(dir) == "/usr" || slices.ContainsFunc(b.n.Files, func(f nodefile.File) bool { return f.Path == dir })
}
