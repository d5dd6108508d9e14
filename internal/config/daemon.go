package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"
)

// Daemon is the configuration of `berth serve`. Each field's key, help and
// accepted values stand in its tags; flags, the sample file and the reference page
// are made from them.
type Daemon struct {
	Listen string `toml:"listen" help:"Address of the CRI socket." flag:"listen"`
	Group  string `toml:"group" help:"Group that may use the CRI socket; a name or a number. Empty: root."`
	Root   string `toml:"root" help:"Directory on disk: images, root filesystems, tombstones, network attachments." flag:"root"`
	State  string `toml:"state" help:"Directory that dies at reboot: records, sockets, mounts. A tmpfs is mounted on it when it is on none." flag:"state"`

	CadvisorSocket string `toml:"cadvisor_socket" help:"Socket on which berth answers what a kubelet's cAdvisor asks of containerd, so that /metrics/cadvisor tells pods and images: /run/containerd/containerd.sock for a kubelet of defaults. Left alone while somebody else answers there. Empty: none." flag:"cadvisor-socket"`

	Log     Log     `toml:"log" help:"What berth tells about itself."`
	Network Network `toml:"network" help:"How pods reach the network."`
	Runtime Runtime `toml:"runtime" help:"How containers run."`
	Image   Image   `toml:"image" help:"Where images come from."`
	Stream  Stream  `toml:"stream" help:"The server behind exec, attach and port-forward."`
	Jobs    Jobs    `toml:"jobs" help:"Limits of the jobs that make sandboxes and containers."`
}

// Log is the daemon's log.
type Log struct {
	Level  string `toml:"level" help:"Least level that is logged." oneof:"debug info warn error" flag:"log-level" reload:"yes"`
	Format string `toml:"format" help:"Shape of the log; auto is text on a terminal and json elsewhere." oneof:"auto text json" flag:"log-format"`
}

// Network is the network of pods.
type Network struct {
	Mode     string   `toml:"mode" help:"cni follows the operator's CNI configuration; builtin is berth's own bridge." oneof:"cni builtin" flag:"network"`
	ConfDir  string   `toml:"conf_dir" help:"Directory of CNI configurations (mode cni)."`
	BinDirs  []string `toml:"bin_dirs" help:"Directories of CNI plugins, in order (mode cni)."`
	Bridge   string   `toml:"bridge" help:"Name of the bridge (mode builtin). Empty: from the instance."`
	Subnets  []string `toml:"subnets" help:"Pod subnets, at most one of each family (mode builtin). Empty: chosen so that they overlap nothing on the host."`
	MTU      int      `toml:"mtu" help:"MTU of pod links (mode builtin). 0: that of the default route."`
	NetNSDir string   `toml:"netns_dir" help:"Where network namespaces are pinned."`
}

// Runtime is how containers run.
type Runtime struct {
	CgroupDriver   string `toml:"cgroup_driver" help:"auto is systemd where systemd is pid 1, else cgroupfs." oneof:"auto cgroupfs systemd"`
	ScopePrefix    string `toml:"scope_prefix" help:"Prefix of container scopes with the systemd driver; node agents know cri-containerd."`
	Supervisor     string `toml:"supervisor" help:"Path of berth-supervisor. Empty: beside this binary, then in PATH."`
	MaxLogLineSize int    `toml:"max_log_line_size" help:"Bytes after which a log line is split."`

	SELinux       string `toml:"selinux" help:"auto labels containers where the kernel has SELinux, and refuses pods that demand confinement where it has not; off labels nothing and ignores what pods ask for." oneof:"auto off"`
	SELinuxVolume string `toml:"selinux_volume_label" help:"Label of volumes that are relabelled: private is the pod's own, shared one that every container may use." oneof:"private shared"`

	CDISpecDirs           []string `toml:"cdi_spec_dirs" help:"Directories of CDI specs; of two with one device the later one wins. Empty: no CDI devices."`
	DeviceOwnership       bool     `toml:"device_ownership_from_security_context" help:"Devices that a container asks for belong to its runAsUser and runAsGroup, not to the host's owner."`
	PrivilegedNoDevices   bool     `toml:"privileged_without_host_devices" help:"Privileged containers do not get the host's devices."`
	PrivilegedAllowDevice bool     `toml:"privileged_without_host_devices_all_devices_allowed" help:"With privileged_without_host_devices: they may still use any device that they make a node of."`
}

// Image is where images come from.
type Image struct {
	RegistryConfigDirs     []string `toml:"registry_config_dirs" help:"Directories with one folder per registry and a hosts.toml in it."`
	MaxConcurrentDownloads int      `toml:"max_concurrent_downloads" help:"Layers fetched at a time for one image."`
	NoProgressTimeout      Duration `toml:"no_progress_timeout" help:"A pull that receives nothing for this long fails."`
}

// Stream is the streaming server.
type Stream struct {
	Address     string   `toml:"address" help:"Address that exec, attach and port-forward listen on."`
	Port        int      `toml:"port" help:"Port of the same; 0 picks a free one."`
	IdleTimeout Duration `toml:"idle_timeout" help:"A stream without traffic is closed after this long."`

	TLS           string `toml:"tls" help:"Whether the server speaks TLS: off, with tls_cert and tls_key (files), or with a certificate that it makes and nobody can verify (self-signed)." oneof:"off files self-signed"`
	TLSCert       string `toml:"tls_cert" help:"PEM file of the certificate and its chain. It is read again when it changes."`
	TLSKey        string `toml:"tls_key" help:"PEM file of the certificate's key."`
	TLSClientCA   string `toml:"tls_client_ca" help:"PEM file of authorities. Clients must have a certificate of one of them. Empty: the URL alone lets a client in."`
	TLSMinVersion string `toml:"tls_min_version" help:"Oldest version of TLS that is spoken." oneof:"1.2 1.3"`
}

// Jobs are the limits of jobs.
type Jobs struct {
	StageTimeout Duration `toml:"stage_timeout" help:"A job that makes no progress in one stage for this long is torn down."`
	TotalTimeout Duration `toml:"total_timeout" help:"A job is torn down after this long in all."`
}

// The places of the default instance.
const (
	DefaultSocket = "/run/berth/berth.sock"
	DefaultRoot   = "/var/lib/berth"
	DefaultState  = "/run/berth"
)

// DefaultDaemon returns the configuration that holds where nothing is said.
func DefaultDaemon() *Daemon {
	return &Daemon{
		Listen: "unix://" + DefaultSocket,
		Root:   DefaultRoot,
		State:  DefaultState,
		Log:    Log{Level: "info", Format: "auto"},
		Network: Network{
			Mode:     "cni",
			ConfDir:  "/etc/cni/net.d",
			BinDirs:  []string{"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"},
			Subnets:  []string{},
			NetNSDir: "/run/netns",
		},
		Runtime: Runtime{
			CgroupDriver: "auto", ScopePrefix: "cri-containerd", MaxLogLineSize: 16384,
			SELinux: "auto", SELinuxVolume: "private", CDISpecDirs: []string{"/etc/cdi", "/var/run/cdi"},
		},
		Image: Image{
			RegistryConfigDirs:     []string{"/etc/berth/certs.d", "/etc/containerd/certs.d", "/etc/docker/certs.d"},
			MaxConcurrentDownloads: 3,
			NoProgressTimeout:      Duration(5 * time.Minute),
		},
		Stream: Stream{Address: "127.0.0.1", IdleTimeout: Duration(4 * time.Hour), TLS: "off", TLSMinVersion: "1.2"},
		Jobs:   Jobs{StageTimeout: Duration(10 * time.Minute), TotalTimeout: Duration(time.Hour)},
	}
}

// maxState leaves room for /supervisor/supervisor.sock in the 107 bytes that the
// path of a socket may have.
const maxState = 80

// SocketPath is the file of the CRI socket.
func (d *Daemon) SocketPath() string { return strings.TrimPrefix(d.Listen, "unix://") }

// check reports every value that the tags cannot judge. Faults that name a key get
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
	checkDirs("network.bin_dirs", d.Network.BinDirs, report)
	checkDirs("runtime.cdi_spec_dirs", d.Runtime.CDISpecDirs, report)
	checkDirs("image.registry_config_dirs", d.Image.RegistryConfigDirs, report)
	if d.Runtime.Supervisor != "" && !filepath.IsAbs(d.Runtime.Supervisor) {
		report("runtime.supervisor", "%q: want an absolute path", d.Runtime.Supervisor)
	}
	if !validName(d.Runtime.ScopePrefix) {
		report("runtime.scope_prefix", "%q: want letters, digits, '.' and '-'", d.Runtime.ScopePrefix)
	}
	if len(d.Network.Bridge) > 15 || (d.Network.Bridge != "" && !validName(d.Network.Bridge)) {
		report("network.bridge", "%q: want at most 15 letters, digits, '.' and '-'", d.Network.Bridge)
	}
	d.checkSubnets(report)
	d.Stream.check(report)
	checkRange("network.mtu", d.Network.MTU, 0, 65535, report)
	checkRange("image.max_concurrent_downloads", d.Image.MaxConcurrentDownloads, 1, 64, report)
	checkRange("runtime.max_log_line_size", d.Runtime.MaxLogLineSize, 256, 1<<20, report)
	for key, duration := range map[string]Duration{
		"image.no_progress_timeout": d.Image.NoProgressTimeout, "stream.idle_timeout": d.Stream.IdleTimeout,
		"jobs.stage_timeout": d.Jobs.StageTimeout, "jobs.total_timeout": d.Jobs.TotalTimeout,
	} {
		if duration < Duration(time.Second) {
			report(key, "%v: want at least 1s", time.Duration(duration))
		}
	}
	if d.Jobs.TotalTimeout < d.Jobs.StageTimeout {
		report("jobs.total_timeout", "%v: want at least jobs.stage_timeout (%v)",
			time.Duration(d.Jobs.TotalTimeout), time.Duration(d.Jobs.StageTimeout))
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
	switch {
	case s.TLSClientCA == "":
	case s.TLS == "off":
		report("stream.tls_client_ca", "%q: is not used, as stream.tls is off", s.TLSClientCA)
	case !filepath.IsAbs(s.TLSClientCA):
		report("stream.tls_client_ca", "%q: want an absolute path", s.TLSClientCA)
	}
}

func (d *Daemon) checkSubnets(report func(key, format string, args ...any)) {
	families := map[bool]bool{}
	for _, text := range d.Network.Subnets {
		prefix, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			report("network.subnets", "%q: want a subnet such as 10.88.0.0/16", text)
		case prefix.Masked() != prefix:
			report("network.subnets", "%q: has host bits set; the subnet is %s", text, prefix.Masked())
		case families[prefix.Addr().Is4()]:
			report("network.subnets", "%q: a second subnet of one family", text)
		default:
			families[prefix.Addr().Is4()] = true
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

// Duration is a time.Duration that is written as "10m" in files and flags.
type Duration time.Duration

// UnmarshalText parses "10m".
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is no duration such as 90s, 10m or 4h", text)
	}
	*d = Duration(parsed)
	return nil
}

// MarshalText writes "10m0s".
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func (d Duration) String() string { return time.Duration(d).String() }

// Set makes a Duration a flag value.
func (d *Duration) Set(text string) error { return d.UnmarshalText([]byte(text)) }

// Type names the flag value in help.
func (d *Duration) Type() string { return "duration" }
