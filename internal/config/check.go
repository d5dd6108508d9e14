package config

import (
	"crypto/tls"
	"fmt"
	"net/netip"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/ocispec/check"
	"github.com/berthrun/berth/internal/ocispec/defaults"
)

// maxState leaves room for /supervisor/supervisor.sock in the 107 bytes that the
// path of a socket may have.
const maxState = 80

// check reports every invalid value that the tags cannot express. Faults that name a key get
// the line of that key later.
func (d *Daemon) check(report func(key, format string, args ...any)) {
	if path, ok := strings.CutPrefix(d.Listen, "unix://"); !ok || !filepath.IsAbs(path) {
		report("listen", "%q: want unix:///ABSOLUTE/PATH", d.Listen)
	} else if len(path) > 107 {
		report("listen", "%q: a socket path has at most 107 bytes", d.Listen)
	}
	for key, dir := range map[string]string{
		"root": d.Root, "state": d.State,
		"network.conf_dir": d.Network.ConfDir, "network.netns_dir": d.Network.NetNSDir,
		"docker.former_cni_cache": d.Docker.FormerCNICache,
	} {
		if !filepath.IsAbs(dir) || dir == "/" {
			report(key, "%q: want an absolute path other than /", dir)
		}
	}
	if path := d.CadvisorSocket; path != "" && (!filepath.IsAbs(path) || len(path) > 107 || path == d.SocketPath()) {
		report("cadvisor_socket", "%q: want an absolute path of at most 107 bytes, and not that of the CRI socket", path)
	}
	if len(d.State) > maxState {
		report("state", "%q: want at most %d bytes, since sockets lie below it", d.State, maxState)
	}
	if d.Root == d.State {
		report("state", "%q: must differ from root, since it dies at reboot", d.State)
	}
	d.Docker.checkEndpoint(report)
	if group := d.Docker.RuntimeCgroup; group != "" && !isCgroupPath(group) {
		report("docker.runtime_cgroup", "%q: want an absolute path other than /, such as /docker-runtime", group)
	}
	checkDirs("network.bin_dirs", d.Network.BinDirs, report)
	checkDirs("docker.former_roots", d.Docker.FormerRoots, report)
	checkDirs("image.registry_config_dirs", d.Image.RegistryConfigDirs, report)
	checkDirs("image.preloaded_dirs", d.Image.PreloadedDirs, report)
	checkDirs("image.import_dirs", d.Image.ImportDirs, report)
	if group := d.Image.UnpackCgroup; group != "" && !isCgroupPath(group) && (!strings.HasSuffix(group, ".slice") || strings.ContainsAny(group, "/ ")) {
		report("image.unpack_cgroup", "%q: want an absolute path other than /, such as /unpack, or a slice, such as berth-unpack.slice", group)
	}
	if dir := d.Image.DecryptionKeysDir; dir != "" && !filepath.IsAbs(dir) {
		report("image.decryption_keys_dir", "%q: want an absolute path", dir)
	}
	d.Image.checkSearch(report)
	d.Image.checkSnapshotters(report)
	d.checkVerification(report)
	if len(d.Network.Bridge) > 15 || (d.Network.Bridge != "" && !validName(d.Network.Bridge)) {
		report("network.bridge", "%q: want at most 15 letters, digits, '.' and '-'", d.Network.Bridge)
	}
	if path := d.Network.ConfTemplate; path != "" && !filepath.IsAbs(path) {
		report("network.conf_template", "%q: want an absolute path", path)
	} else if path != "" && d.Network.Mode != "cni" {
		report("network.conf_template", "%q: is not used, as network.mode is %s", path, d.Network.Mode)
	}
	if path := d.Network.RoutesFile; path != "" && !filepath.IsAbs(path) {
		report("network.routes_file", "%q: want an absolute path", path)
	}
	d.checkSubnets(report)
	d.Stream.check(report)
	d.Metrics.check(report)
	d.Traces.check(report)
	d.Page.check(report)
	if d.Page.Listen != "" && d.Page.Listen == d.Metrics.Listen {
		report("page.listen", "%q: is metrics.listen, too; choose another port", d.Page.Listen)
	}
	if path, ok := strings.CutPrefix(d.Metrics.Listen, "unix://"); ok && (path == d.SocketPath() || path == d.CadvisorSocket) {
		report("metrics.listen", "%q: is another socket of the daemon; choose another path, such as unix://%s/metrics.sock", d.Metrics.Listen, d.State)
	}
	d.Runtime.check(report)
	d.Checkpoint.check(report)
	d.Default.check(report)
	d.checkHandlers(report)
	d.checkWritableLimits(report)
	d.NRI.check(report)
	checkRange("network.max_conf_num", d.Network.MaxConfNum, 0, 64, report)
	checkRange("network.max_plugin_processes", d.Network.MaxProcesses, 0, 65536, report)
	checkRange("network.mtu", d.Network.MTU, 0, 65535, report)
	checkRange("pools.network_namespaces", d.Pools.NetworkNamespaces, 0, 64, report)
	checkRange("pools.root_filesystems", d.Pools.RootFilesystems, 0, 256, report)
	checkRange("image.max_concurrent_downloads", d.Image.MaxConcurrentDownloads, 1, 64, report)
	checkRange("image.max_total_downloads", d.Image.MaxTotalDownloads, 0, 1024, report)
	checkRange("image.download_rate_mib", d.Image.DownloadRateMiB, 0, 1<<20, report)
	checkRange("image.layer_connections", d.Image.LayerConnections, 1, 16, report)
	checkRange("image.layer_part_mib", d.Image.LayerPartMiB, 1, 128, report)
	checkRange("image.parts_memory_mib", d.Image.PartsMemoryMiB, 1, 4096, report)
	if d.Image.PartsMemoryMiB < d.Image.LayerPartMiB {
		report("image.parts_memory_mib", "%d: is less than one part (image.layer_part_mib); image.layer_connections = 1 fetches no layer in parts", d.Image.PartsMemoryMiB)
	}
	checkRange("image.max_layer_gib", d.Image.MaxLayerGiB, 1, 1024, report)
	for key, duration := range map[string]Duration{
		"nri.plugin_registration_timeout": d.NRI.RegistrationTimeout, "nri.plugin_request_timeout": d.NRI.RequestTimeout,
		"image.no_progress_timeout": d.Image.NoProgressTimeout, "stream.idle_timeout": d.Stream.IdleTimeout,
		"jobs.stage_timeout": d.Jobs.StageTimeout, "jobs.total_timeout": d.Jobs.TotalTimeout, "stats.period": d.Stats.Period,
	} {
		if duration < Duration(time.Second) {
			report(key, "%v: want at least 1s", time.Duration(duration))
		}
	}
	if d.Network.StatusGrace < 0 {
		report("network.status_grace_period", "%v: want 0s or more", time.Duration(d.Network.StatusGrace))
	}
	if d.Jobs.TotalTimeout < d.Jobs.StageTimeout {
		report("jobs.total_timeout", "%v: want at least jobs.stage_timeout (%v)",
			time.Duration(d.Jobs.TotalTimeout), time.Duration(d.Jobs.StageTimeout))
	}
}

// ErofsSnapshotter is the name of the snapshotter that is berth's own, and needs no entry in image.snapshotters.
const ErofsSnapshotter = image.ErofsSnapshotter

// ProxySnapshotters returns the sockets of the proxy snapshotters by their names.
func (i *Image) ProxySnapshotters() map[string]string {
	sockets := map[string]string{}
	for _, entry := range i.Snapshotters {
		name, socket, _ := strings.Cut(entry, "=")
		sockets[name] = socket
	}
	return sockets
}

// checkSnapshotters checks the proxy snapshotters. Records of images have their names.
func (i *Image) checkSnapshotters(report func(key, format string, args ...any)) {
	const key = "image.snapshotters"
	seen := map[string]bool{}
	for _, entry := range i.Snapshotters {
		name, socket, _ := strings.Cut(entry, "=")
		switch {
		case !validName(name) || !filepath.IsAbs(socket) || len(socket) > 107:
			report(key, "%q: want NAME=/PATH/OF/ITS/SOCKET, with letters, digits, '-' and '.' in the name and at most 107 bytes in the path", entry)
		case name == "overlayfs", name == "native", name == ErofsSnapshotter:
			report(key, "%q: %s is the name of berth's own layers; choose another name", entry, name)
		case seen[name]:
			report(key, "%q: the name is there twice; remove one of them", entry)
		}
		seen[name] = true
	}
}

// checkSearch refuses what is not the host of a registry as names of images have it.
func (i *Image) checkSearch(report func(key, format string, args ...any)) {
	const key = "image.search_registries"
	seen := map[string]bool{}
	for _, host := range i.SearchRegistries {
		named, err := reference.ParseNormalizedNamed(host + "/a/b")
		_, rest, scheme := strings.Cut(host, "://")
		switch {
		case scheme:
			report(key, "%q: has a scheme; want the host alone, such as %s, and the scheme in its hosts.toml", host, strings.Trim(rest, "/"))
		case strings.Contains(host, "/"):
			report(key, "%q: has a path; want the host alone, such as registry.example or registry.example:5000", host)
		case err != nil:
			report(key, "%q: is not the host of a registry; want one such as registry.example or registry.example:5000", host)
		case reference.Domain(named) == host && !seen[host]:
		case reference.Domain(named) == host:
			report(key, "%q: is there twice; remove one of them", host)
		case strings.Contains(host, "."):
			report(key, "%q: names of images have %s for this registry; write that", host, reference.Domain(named))
		default:
			report(key, "%q: has neither a dot nor a port, so names of images cannot have it as their registry; want one such as registry.example or registry.example:5000", host)
		}
		seen[host] = true
	}
}

// checkVerification refuses keys that admit images where nothing enforces them: a node would run what its policy
// rejects.
func (d *Daemon) checkVerification(report func(key, format string, args ...any)) {
	if dir := d.Image.LookasideDir; dir != "" && !filepath.IsAbs(dir) {
		report("image.lookaside_dir", "%q: want an absolute path", dir)
	}
	for key, path := range map[string]string{"image.policy": d.Image.Policy, "image.policy_dir": d.Image.PolicyDir, "image.verifier_dir": d.Image.VerifierDir} {
		switch {
		case path == "":
		case !filepath.IsAbs(path):
			report(key, "%q: want an absolute path", path)
		case d.Engine != "native":
			report(key, "%q: the engine %s pulls images without it; only the engine native verifies images", path, d.Engine)
		}
	}
}

// checkEndpoint refuses what is not a unix socket: berth enters the namespaces and reads the cgroups
// of the engine's containers, which another host's would not be.
func (d *Docker) checkEndpoint(report func(key, format string, args ...any)) {
	const key = "docker.endpoint"
	scheme, path, ok := strings.Cut(d.Endpoint, "://")
	switch {
	case !ok && filepath.IsAbs(d.Endpoint):
		report(key, "%q: it has no scheme; want unix://%s", d.Endpoint, d.Endpoint)
	case !ok:
		report(key, "%q: want unix:///ABSOLUTE/PATH, such as unix:///var/run/docker.sock", d.Endpoint)
	case scheme != "unix":
		report(key, "%q: want the unix socket of the engine (unix:///ABSOLUTE/PATH): the engine must be on this host, "+
			"since berth enters the namespaces of its containers and reads their cgroups", d.Endpoint)
	case path == "":
		report(key, "%q: it has no path; want unix:///ABSOLUTE/PATH, such as unix:///var/run/docker.sock", d.Endpoint)
	case !filepath.IsAbs(path):
		report(key, "%q: want unix:///ABSOLUTE/PATH, such as unix:///%s", d.Endpoint, path)
	case len(path) > 107:
		report(key, "%q: a socket path has at most 107 bytes", d.Endpoint)
	}
}

func (c *Checkpoint) check(report func(key, format string, args ...any)) {
	if !filepath.IsAbs(c.CRIU) {
		report("checkpoint.criu", "%q: want an absolute path", c.CRIU)
	}
	if !filepath.IsAbs(c.Runtime) {
		report("checkpoint.runtime", "%q: want an absolute path", c.Runtime)
	}
}

func (r *Runtime) check(report func(key, format string, args ...any)) {
	if r.Supervisor != "" && !filepath.IsAbs(r.Supervisor) {
		report("runtime.supervisor", "%q: want an absolute path", r.Supervisor)
	}
	if !validName(r.ScopePrefix) {
		report("runtime.scope_prefix", "%q: want letters, digits, '.' and '-'", r.ScopePrefix)
	}
	checkRange("runtime.log_rate_mib", r.LogRateMiB, 0, 1<<20, report)
	if r.MaxLogLineSize != 0 {
		checkRange("runtime.max_log_line_size", r.MaxLogLineSize, 256, 1<<20, report)
	}
	for key, file := range map[string]string{
		"runtime.seccomp_profile": r.SeccompProfile, "runtime.privileged_seccomp_profile": r.SeccompPrivileged,
		"runtime.blockio_config_file": r.BlockIOFile,
	} {
		if file != "" && !filepath.IsAbs(file) {
			report(key, "%q: want an absolute path", file)
		}
	}
	if err := check.ProfileName(r.AppArmorProfile); r.AppArmorProfile != "" && err != nil {
		report("runtime.apparmor_profile", "%v", err)
	}
	checkRange("runtime.selinux_category_range", r.SELinuxRange, 2, 1024, report)
	checkRange("runtime.first_project_id", r.FirstProjectID, 0, 1<<31-1<<20, report)
	checkDirs("runtime.cdi_spec_dirs", r.CDISpecDirs, report)
	checkDirs("runtime.hooks_dirs", r.HookDirs, report)
	checkDirs("runtime.absent_mount_sources_to_reject", r.AbsentSources, report)
	for key, patterns := range map[string][]string{
		"runtime.pod_annotations": r.PodAnnotations, "runtime.container_annotations": r.ContainerAnnotations,
	} {
		checkPatterns(key, patterns, report)
	}
}

// checkPatterns refuses patterns that package path cannot match.
func checkPatterns(key string, patterns []string, report func(key, format string, args ...any)) {
	for _, pattern := range patterns {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			report(key, "%q: want a name with the wildcards *, ? and [a-z]", pattern)
		}
	}
}

func (s *Stream) check(report func(key, format string, args ...any)) {
	checkRange("stream.port", s.Port, 0, 65535, report)
	if _, err := netip.ParseAddr(s.Address); err != nil {
		report("stream.address", "%q: want an IP address", s.Address)
	}
	for _, file := range []struct {
		key, path string
		wanted    bool
	}{
		{"stream.tls_cert", s.TLSCert, s.TLS == "files"},
		{"stream.tls_key", s.TLSKey, s.TLS == "files"},
	} {
		switch {
		case file.wanted && !filepath.IsAbs(file.path):
			report(file.key, "%q: want an absolute path, as stream.tls is files", file.path)
		case !file.wanted && file.path != "":
			report(file.key, "%q: is not used, as stream.tls is %s", file.path, s.TLS)
		}
	}
	if _, err := s.CipherSuites(); err != nil {
		report("stream.tls_cipher_suites", "%v", err)
	} else if len(s.TLSCipherSuites) > 0 && (s.TLS == "off" || s.TLSMinVersion == "1.3") {
		report("stream.tls_cipher_suites", "is not used, as TLS 1.2 is not spoken (stream.tls is %s, stream.tls_min_version %s)", s.TLS, s.TLSMinVersion)
	}
	switch {
	case s.TLSClientCA == "":
	case s.TLS == "off":
		report("stream.tls_client_ca", "%q: is not used, as stream.tls is off", s.TLSClientCA)
	case !filepath.IsAbs(s.TLSClientCA):
		report("stream.tls_client_ca", "%q: want an absolute path", s.TLSClientCA)
	}
}

// CipherSuites are the numbers of the suites, nil where none is named.
func (s *Stream) CipherSuites() ([]uint16, error) {
	var ids []uint16
	for _, name := range s.TLSCipherSuites {
		i := slices.IndexFunc(tls.CipherSuites(), func(suite *tls.CipherSuite) bool {
			return suite.Name == name && slices.Contains(suite.SupportedVersions, tls.VersionTLS12)
		})
		if i < 0 {
			return nil, fmt.Errorf("%q: is not a safe cipher suite of TLS 1.2", name)
		}
		ids = append(ids, tls.CipherSuites()[i].ID)
	}
	return ids, nil
}

func (d *Daemon) checkSubnets(report func(key, format string, args ...any)) {
	var subnets []netip.Prefix
	for _, text := range d.Network.Subnets {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			report("network.subnets", "%q: want a subnet such as 10.88.0.0/16", text)
			continue
		}
		if err := network.CheckSubnets(append(slices.Clone(subnets), prefix)); err != nil {
			report("network.subnets", "%s", errs.Message(err))
			continue
		}
		subnets = append(subnets, prefix)
	}
	for _, text := range d.Network.Cluster {
		if prefix, err := netip.ParsePrefix(text); err != nil {
			report("network.cluster_subnets", "%q: want a subnet such as 10.244.0.0/16", text)
		} else if prefix.Masked() != prefix {
			report("network.cluster_subnets", "%q: has host bits set; the subnet is %s", text, prefix.Masked())
		}
	}
}

func checkDirs(key string, dirs []string, report func(key, format string, args ...any)) {
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) {
			report(key, "%q: want an absolute path", dir)
		}
	}
}

func checkRange(key string, value, low, high int, report func(key, format string, args ...any)) {
	if value < low || value > high {
		report(key, "%d: want %d to %d", value, low, high)
	}
}

func validName(name string) bool {
	if name == "" {
		return false
	}
	return strings.IndexFunc(name, func(r rune) bool {
		alnum := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		return !alnum && r != '-' && r != '.'
	}) < 0
}

func (d *Default) check(report func(key, format string, args ...any)) {
	defaults.Parse(d.texts(), func(key string, err error) { report("defaults."+key, "%v", err) })
	for _, entry := range d.Env {
		if name, value, _ := strings.Cut(entry, "="); value == Hidden {
			report("defaults.env", "%s: its value was hidden when the configuration was printed (`berth config dump --show-secrets` prints it)", name)
		}
	}
	checkRange("defaults.min_gomaxprocs", d.GOMAXPROCS, 0, 4096, report)
}

// checkWritableLimits refuses limits that leave no room for the directories of an overlay, and those that cannot hold.
func (d *Daemon) checkWritableLimits(report func(key, format string, args ...any)) {
	for key, bytes := range d.WritableLimits() {
		if d.Runtime.FirstProjectID == 0 {
			report(key, "%d: needs project quotas, which runtime.first_project_id = 0 turns off", bytes)
		}
		checkRange(key, bytes, 1<<20, 1<<60, report)
	}
}

func (n *NRI) check(report func(key, format string, args ...any)) {
	for key, path := range map[string]string{
		"nri.socket": n.Socket, "nri.plugin_dir": n.PluginDir, "nri.plugin_config_dir": n.ConfigDir,
	} {
		if path != "" && !filepath.IsAbs(path) {
			report(key, "%q: want an absolute path", path)
		}
	}
	if len(n.Socket) > 107 {
		report("nri.socket", "%q: a socket path has at most 107 bytes", n.Socket)
	}
	if !n.Validate && (len(n.RequiredPlugins) > 0 || n.RejectHooks || n.RejectRuntimeDefault || n.RejectUnconfined ||
		n.RejectCustom || n.RejectNamespaces || n.RejectSysctls) {
		report("nri.default_validator", "is false, so the keys reject_* and required_plugins have no effect")
	}
}

// isCgroupPath reports whether a text is the path of a cgroup other than the root.
func isCgroupPath(text string) bool {
	return filepath.IsAbs(text) && filepath.Clean(text) == text && text != "/"
}
