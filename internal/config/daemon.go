package config

import (
	"cmp"
	"path/filepath"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/ocispec/defaults"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// Daemon is the configuration of `berth serve`. Each field's tags have its key, help and accepted
// values; flags, the sample file and the reference page are generated from them.
type Daemon struct {
	Listen string `toml:"listen" help:"Address of the CRI socket." flag:"listen"`
	Group  string `toml:"group" help:"Group that may use the CRI socket; a name or a number. Empty: root."`
	Root   string `toml:"root" help:"Directory on disk: images, root filesystems, tombstones, network attachments." flag:"root"`
	State  string `toml:"state" help:"Directory for what ends with a reboot: records, sockets, mounts. berth mounts a tmpfs on it unless it is on one, and follows links in it." flag:"state"`

	CadvisorSocket string `toml:"cadvisor_socket" help:"Socket on which berth answers what a kubelet's cAdvisor asks of containerd, so that /metrics/cadvisor reports pods and images: /run/containerd/containerd.sock for a kubelet of defaults. Not used while another process answers there. Empty: none." flag:"cadvisor-socket"`

	Engine string `toml:"engine" help:"The engine that runs containers. native is berth itself, through its supervisor; docker is a Docker Engine on this host." oneof:"native docker" flag:"engine"`

	Log        Log        `toml:"log" help:"The daemon's log."`
	Network    Network    `toml:"network" help:"How pods reach the network."`
	Docker     Docker     `toml:"docker" help:"The Docker Engine (engine docker)."`
	Runtime    Runtime    `toml:"runtime" help:"How containers run."`
	Pools      Pools      `toml:"pools" help:"What berth makes ahead, so that the start of a pod need not wait for it. Nothing in a pool is used twice, and a start of berth fills the pools again. berth info and the metrics berth_pool_* show how many are ready and how many were used." engine:"native"`
	Default    Default    `toml:"defaults" help:"Defaults of pods and containers that ask for nothing else."`
	NRI        NRI        `toml:"nri" help:"Plugins of the Node Resource Interface. docs/nri.md is the guide."`
	Image      Image      `toml:"image" help:"Where images come from."`
	Stream     Stream     `toml:"stream" help:"The server behind exec, attach and port-forward."`
	Jobs       Jobs       `toml:"jobs" help:"Limits of the jobs that make sandboxes and containers."`
	Stats      Stats      `toml:"stats" help:"Figures of pods and containers."`
	Checkpoint Checkpoint `toml:"checkpoint" help:"Archives of running containers, by CRIU. Off by default. docs/checkpoint.md is the guide."`
	Metrics    Metrics    `toml:"metrics" help:"Metrics for Prometheus. docs/metrics.md has their names. berth metrics prints them in any case."`
	Traces     Traces     `toml:"traces" help:"Traces of requests, jobs and pulls, as spans of OpenTelemetry. Off by default. docs/traces.md is the guide."`
	Page       Page       `toml:"page" help:"The node page: pods, jobs, logs, events, start times, images and the findings of berth doctor in a browser, to look at. Off by default. berth page prints its address."`
	Debug      Debug      `toml:"debug" help:"Helps to find faults. Off by default."`

	Handlers map[string]Handler `toml:"handlers" help:"Runtime handlers, by name." reload:"yes" engine:"native"`
}

// Adopts reports whether this berth takes over pods of another runtime. Several berths may use
// one Docker Engine: those in other directories do so only if their configuration says it.
func (d *Daemon) Adopts() bool {
	return d.Engine == "docker" && (d.Docker.Adopt == "on" || d.Docker.Adopt == "auto" && d.State == DefaultState)
}

// WritableLimits are the limits of what containers write, in bytes, by the keys that set one.
func (d *Daemon) WritableLimits() map[string]int {
	limits := map[string]int{}
	if bytes := d.Default.WritableLimit; bytes != 0 {
		limits["defaults.writable_limit"] = bytes
	}
	for name := range d.Handlers {
		if bytes, key := d.writableLimitOf(name); bytes != 0 {
			limits[key] = bytes
		}
	}
	return limits
}

// writableLimitOf returns the limit of what containers of a handler write, in bytes, and the key that sets it.
func (d *Daemon) writableLimitOf(handler string) (bytes int, key string) {
	if own := d.Handlers[handler].WritableLimit; own != nil {
		return *own, handlersKey + "." + handler + ".writable_limit"
	}
	return d.Default.WritableLimit, "defaults.writable_limit"
}

// Log is the daemon's log.
type Log struct {
	Level  string `toml:"level" help:"Lowest level that is logged." oneof:"debug info warn error" flag:"log-level" reload:"yes"`
	Format string `toml:"format" help:"Shape of the log; auto is text on a terminal and json elsewhere." oneof:"auto text json" flag:"log-format"`
}

// Network is the network of pods.
type Network struct {
	Mode         string   `toml:"mode" help:"cni follows the operator's CNI configuration; builtin is berth's own bridge; kubenet is that bridge with the name cbr0 unless bridge names another, and with the node's pod CIDR, which the kubelet sends, unless subnets has some." oneof:"cni builtin kubenet" flag:"network"`
	ConfDir      string   `toml:"conf_dir" help:"Directory of CNI configurations (mode cni)."`
	ConfTemplate string   `toml:"conf_template" help:"File with a template (Go's text/template) of a CNI configuration. berth writes it to 10-berth.conflist in conf_dir when the kubelet sends the node's pod CIDR, and again when the template changes or the file is removed, unless another configuration is in use (mode cni). It can refer to .PodCIDR, .PodCIDRRanges and .Routes, as containerd's conf_template does. Empty: none."`
	BinDirs      []string `toml:"bin_dirs" help:"Directories of CNI plugins, in order (mode cni)."`
	MaxConfNum   int      `toml:"max_conf_num" help:"How many CNI configurations are in use, the first by name (mode cni). A pod has a link in the network of each: eth0, eth1 and so on. Its addresses are those of eth0. 0: all of them."`
	Serially     bool     `toml:"setup_serially" help:"Attach a pod to its networks one after the other, and not at once (mode cni)."`
	IPPreference string   `toml:"ip_pref" help:"Which address of a pod is the first, and so its own; the others are additional (mode cni). ipv4 or ipv6: those of that family; cni: the order in which the plugins return them. Another value is a warning, and means ipv4."`
	StatusGrace  Duration `toml:"status_grace_period" help:"How long the node stays ready when the CNI plugins, which could serve before, report in STATUS that they cannot, or are not installed any more (mode cni). 0: it is not ready at once."`
	HostPorts    string   `toml:"host_ports" help:"Host ports of pods where no plugin of the CNI configuration has the capability portMappings (mode cni). refuse: such a pod is refused. cni: it starts, for networks that serve host ports without that capability. Plugins that have it always serve them." oneof:"refuse cni"`
	InProcess    bool     `toml:"inprocess" help:"berth runs its own CNI plugins (see running.md) in its process (mode cni). It does so for a plugin whose program is missing in bin_dirs, and for one whose program is a release of the reference plugins that berth's were compared with. false: all plugins are programs."`
	MaxProcesses int      `toml:"max_plugin_processes" help:"How many processes of one CNI plugin program may run for pods at once (mode cni). A call beyond them waits, until its deadline. So a program that hangs holds up neither other programs nor the host. 0: any number."`
	Bridge       string   `toml:"bridge" help:"Name of the bridge (modes builtin and kubenet). Empty: from the instance, or cbr0 (kubenet)."`
	Hairpin      string   `toml:"hairpin" help:"How a pod reaches itself through a service or a host port where the host filters bridged traffic (modes builtin and kubenet). auto is hairpin-veth: the ports of the bridge are in hairpin mode. promiscuous-bridge: the bridge is promiscuous as well, and the host drops the copies that it would send to pods. none: a pod does not reach itself. It applies to running pods, too. In mode cni the plugins decide; promiscuous-bridge is a warning there." oneof:"auto none hairpin-veth promiscuous-bridge"`
	Subnets      []string `toml:"subnets" help:"Pod subnets, at most one of each family (modes builtin and kubenet). berth does not start if one has an address of the host or of its gateway, unless pods of it run. Empty: chosen so that they overlap nothing on the host."`
	Await        bool     `toml:"await_pod_cidr" help:"Where subnets is empty, none is chosen: the network is not ready until the kubelet sets the node's pod CIDR (mode builtin; always in mode kubenet)."`
	Cluster      []string `toml:"cluster_subnets" help:"Subnets whose addresses pods reach with their own: those of all pods of the cluster, where there are routes to the other nodes' (modes builtin and kubenet). Traffic to other addresses is masqueraded."`
	RoutesFile   string   `toml:"routes_file" help:"File with the routes to the pods of other nodes (modes builtin and kubenet), one a line: SUBNET via GATEWAY [dev LINK]. berth follows it; berth net route changes it. See running.md. Empty: none." flag:"routes-file"`
	MTU          int      `toml:"mtu" help:"MTU of pod links (modes builtin and kubenet). 0: that of the default route."`
	NetNSDir     string   `toml:"netns_dir" help:"Where network namespaces are pinned."`
}

// Docker is the Docker Engine.
type Docker struct {
	Endpoint       string   `toml:"endpoint" help:"The unix socket of the Docker Engine on this host, unix:///PATH." flag:"docker-endpoint"`
	RuntimeCgroup  string   `toml:"runtime_cgroup" help:"Path of a cgroup, from the root of the hierarchies, in which berth keeps the engine's own processes: dockerd, and the containerd that is its child. They get oom_score_adj -999. berth makes the cgroup, without limits, and looks at the processes each minute. For engines that no systemd unit with Slice= and OOMScoreAdjust= starts. Empty: they stay where they are."`
	Timeout        Duration `toml:"timeout" help:"A request that the Docker Engine does not answer for this long fails. For logs, events and attached streams this is the limit for the begin of the answer. Pulls have image.no_progress_timeout instead; imports and exports of images have no limit."`
	Adopt          string   `toml:"adopt" help:"Whether berth takes over the pods that dockershim or cri-dockerd made in this Docker Engine. auto is on for the berth with the default state directory, and off for others on the same host." oneof:"auto on off"`
	FormerRoots    []string `toml:"former_roots" help:"Directories of dockershim and cri-dockerd. Their checkpoints have the host ports of pods that berth adopts."`
	FormerCNICache string   `toml:"former_cni_cache" help:"The cache of results of the CNI plugins that attached the pods which berth adopts. It says how they are detached."`
}

// Runtime is how containers run.
type Runtime struct {
	CgroupDriver   string `toml:"cgroup_driver" help:"auto is systemd where systemd is pid 1, else cgroupfs; with engine docker it is the engine's." oneof:"auto cgroupfs systemd"`
	ScopePrefix    string `toml:"scope_prefix" help:"Prefix of container scopes with the systemd driver; node agents know cri-containerd." engine:"native"`
	Supervisor     string `toml:"supervisor" help:"Path of berth-supervisor. Empty: beside this binary, then in PATH." engine:"native"`
	OwnInit        bool   `toml:"own_init" help:"Berth's own init creates the containers whose OCI spec it covers, and starts commands in them; libcontainer creates all others. false: libcontainer creates all. berth pod inspect and berth info show what created a container, and why it was not the own init." reload:"yes" engine:"native"`
	DefaultHandler string `toml:"default_handler" help:"Name of the handler of pods that name none. Empty: berth itself, without the settings of a handler." reload:"yes" engine:"native"`
	MaxLogLineSize int    `toml:"max_log_line_size" help:"Bytes after which a log line is split, 256 to 1048576; 0 is the same as 1048576." reload:"yes"`
	LogRateMiB     int    `toml:"log_rate_mib" help:"MiB per second that one container may write to its log. Each read of its pipes counts as 8 KiB more. After a burst of ten seconds' worth, its writes block. The supervisor writes logs with CPU time outside of the pod. 0 is no limit." reload:"yes" engine:"native"`

	FirstProjectID int `toml:"first_project_id" help:"First of the 1048576 ids of project quotas that berth gives to containers, where the file system of root has such quotas (ext4 or xfs, mounted with prjquota). There the kernel counts what each container writes. berth leaves out ids that are in /etc/projects or /etc/projid, and those that have files. 0: berth uses no project quotas." engine:"native"`

	SELinux       string `toml:"selinux" help:"auto labels containers, their files and the image store where the kernel has SELinux; off labels nothing. A label that a pod demands and cannot have fails the pod in both; lenient is auto, but leaves such a label out where the kernel has no SELinux, as containerd and CRI-O do, and as Kubernetes' conformance tests expect." oneof:"auto off lenient" engine:"native"`
	SELinuxVolume string `toml:"selinux_volume_label" help:"Label of volumes that are relabelled: private is the pod's own, shared one that every container may use." oneof:"private shared" reload:"yes" engine:"native"`
	SELinuxRange  int    `toml:"selinux_category_range" help:"Categories that keep sandboxes apart are c0 to one below this; 1024 is what policies know." engine:"native"`
	AppArmor      string `toml:"apparmor" help:"auto runs containers that ask for no profile under berth's own where the kernel has AppArmor; off runs them without. A profile that a pod demands and cannot have fails the pod in both." oneof:"auto off" reload:"yes"`

	AppArmorProfile   string `toml:"apparmor_profile" help:"Name of an AppArmor profile that replaces berth's own, for containers that request no profile or RuntimeDefault. You load it; containers fail while it is not loaded. Empty: berth's own, which is loaded when it is needed." reload:"yes"`
	SeccompProfile    string `toml:"seccomp_profile" help:"Path of the profile that runtime/default means, in the form of Docker's default one. It is read for each container. Empty: the built-in one, which is that of Docker and containerd. The process that reaps a shared PID namespace keeps the latter." reload:"yes"`
	SeccompPrivileged string `toml:"privileged_seccomp_profile" help:"Path of the profile of privileged containers, whatever they ask for. Empty: none, as CRI says." reload:"yes"`

	CDISpecDirs           []string `toml:"cdi_spec_dirs" help:"Directories of CDI specs; of two with one device the later one wins. Empty: no CDI devices." reload:"yes" engine:"native"`
	HookDirs              []string `toml:"hooks_dirs" help:"Directories of OCI hooks in the format of CRI-O and podman; of two files with one name the one in the later directory counts. Empty: no hooks but those of CDI and NRI. See hooks.md." reload:"yes" engine:"native"`
	BlockIOFile           string   `toml:"blockio_config_file" help:"Path of the file that defines classes of block IO, in the format of containerd and CRI-O. A pod chooses a class by the annotation blockio.resources.beta.kubernetes.io/pod or .../container.NAME. berth reads the file for each container of such a pod. Empty: no class is defined." reload:"yes" engine:"native"`
	IgnoreNoBlockIO       bool     `toml:"ignore_blockio_not_enabled_errors" help:"Without blockio_config_file, a container that chooses a class is created without it. false: it is refused." reload:"yes" engine:"native"`
	IgnoreNoRDT           bool     `toml:"ignore_rdt_not_enabled_errors" help:"Where resctrl is not mounted at /sys/fs/resctrl, a container that chooses a class of RDT (annotation rdt.resources.beta.kubernetes.io/pod or .../container.NAME) is created without it. false: it is refused." reload:"yes" engine:"native"`
	DeviceOwnership       bool     `toml:"device_ownership_from_security_context" help:"Devices that a container requests belong to its runAsUser and runAsGroup, not to the host's owner." reload:"yes"`
	PrivilegedNoDevices   bool     `toml:"privileged_without_host_devices" help:"Privileged containers do not get the host's devices." reload:"yes"`
	PrivilegedAllowDevice bool     `toml:"privileged_without_host_devices_all_devices_allowed" help:"With privileged_without_host_devices: they may still use any device that they make a node of." reload:"yes" engine:"native"`

	AbsentSources        []string `toml:"absent_mount_sources_to_reject" help:"Paths of the host for which berth makes no directory if a mount names them and they are missing; the container fails. Example: /etc/hostname." reload:"yes"`
	ImageVolumes         string   `toml:"image_volumes" help:"What a container gets at a path that its image declares as a volume and where its pod mounts nothing: bind is a directory of its own with what the image has there, which it can write to also with a read-only root filesystem, and which goes with it; ignore leaves the path to the root filesystem." oneof:"bind ignore" reload:"yes" engine:"native"`
	PodAnnotations       []string `toml:"pod_annotations" help:"Patterns of annotations of pods that hooks of their containers see, as annotations of the OCI spec: example.org/*. A * stands for anything but a slash. What the runtime itself obeys (org.systemd.property.*, org.criu.*, bundle) is never passed." reload:"yes" engine:"native"`
	ContainerAnnotations []string `toml:"container_annotations" help:"The same for annotations of containers." reload:"yes" engine:"native"`
	AllowedAnnotations   []string `toml:"allowed_annotations" help:"Annotations of CRI-O's by which pods may ask for more than their fields say: unified-cgroup.crio.io/CONTAINER sets files of the container's cgroup (v2), limits that the kubelet has set included; link-logs.crio.io shows the pod's logs in one of its emptyDir volumes. Others of CRI-O's, and these where they are not named here, are ignored with a warning." oneof:"unified-cgroup.crio.io link-logs.crio.io" reload:"yes"`
}

// Pools are what is made ahead.
type Pools struct {
	NetworkNamespaces int `toml:"network_namespaces" help:"How many network namespaces are ready, 0 to 64. Each takes some 90 KiB of the kernel's memory, and no process. 0: none; the start of a pod makes its own." engine:"native"`
	RootFilesystems   int `toml:"root_filesystems" help:"How many pairs of empty directories for the writable layers of containers are ready, 0 to 256. They take three directories each on the disk of root, and no memory. 0: none; the start of a container makes its own." engine:"native"`
}

// Default has the defaults of pods and containers.
type Default struct {
	Seccomp      string   `toml:"seccomp" help:"Filter of a container that sets none and is not privileged: unconfined, as CRI says, runtime/default, or the path of a profile on this host." reload:"yes"`
	Capabilities []string `toml:"capabilities" help:"Capabilities that requests add to and drop from." reload:"yes"`
	Inheritable  bool     `toml:"inheritable_capabilities" help:"Capabilities of containers are in their inheritable set, too, so that a program that is not root's gets those that its file has as inheritable. Other runtimes did so before CVE-2022-24769." reload:"yes" engine:"native"`
	Env          []string `toml:"env" help:"Environment of containers, NAME=VALUE. The image and the pod override it." reload:"yes" secret:"values"`
	GOMAXPROCS   int      `toml:"min_gomaxprocs" help:"Least GOMAXPROCS of containers without a limit of CPU, in a kubelet's burstable and best-effort pods: twice the CPUs that the container requests, but no less than this. A container that sets its own keeps it. 0: none is set." reload:"yes"`
	Ulimits      []string `toml:"ulimits" help:"Limits of processes, NAME=SOFT:HARD or NAME=BOTH: nofile=1024:524288, core=0, memlock=unlimited. nofile is 1024:524288 unless it is here; others are as the supervisor has them." reload:"yes"`
	Sysctls      []string `toml:"sysctls" help:"Sysctls of pods, NAME=VALUE, of the pod's own network or IPC namespace. Not set in a pod that has the host's namespace. The pod overrides them." reload:"yes"`
	Devices      []string `toml:"devices" help:"Devices that every container gets, HOST, HOST:CONTAINER or HOST:CONTAINER:PERMISSIONS: /dev/fuse. One that is missing fails the container." reload:"yes"`

	WritableLimit int `toml:"writable_limit" help:"Limit in bytes of what a container writes: to its root filesystem and to the volumes of its image. The container may have one file for each 4096 bytes of the limit, and at least 4096 files. The limit is 1048576 at least; 0 is no limit. A write beyond the limit fails in the container. The file system of root must have project quotas. Otherwise no pod starts. See running.md." reload:"yes" engine:"native"`
}

// texts are the defaults as package defaults parses them.
func (d *Default) texts() defaults.Texts {
	return defaults.Texts{
		Seccomp: d.Seccomp, Capabilities: d.Capabilities, Env: d.Env, Ulimits: d.Ulimits, Sysctls: d.Sysctls, Devices: d.Devices,
	}
}

// Read parses the texts, which check has accepted.
func (d *Default) Read() *defaults.Defaults {
	read := defaults.Parse(d.texts(), func(string, error) {})
	read.Container.Inheritable, read.Container.MinGOMAXPROCS = d.Inheritable, d.GOMAXPROCS
	return read
}

// NRI has the settings of plugins of the Node Resource Interface.
type NRI struct {
	Enabled             bool     `toml:"enabled" help:"NRI plugins see pods and containers, and may change containers." engine:"native"`
	Socket              string   `toml:"socket" help:"Socket on which plugins connect. Empty: /var/run/nri/nri.sock for the berth with the default state directory, nri/nri.sock in the state directory for others on the same host. Not used while another process answers there." engine:"native"`
	PluginDir           string   `toml:"plugin_dir" help:"Directory of plugins that berth starts, named INDEX-NAME: 10-logger. Empty: /opt/nri/plugins for the berth with the default state directory, none for others." engine:"native"`
	ConfigDir           string   `toml:"plugin_config_dir" help:"Directory of the configurations of those plugins: INDEX-NAME.conf or NAME.conf." engine:"native"`
	RegistrationTimeout Duration `toml:"plugin_registration_timeout" help:"A plugin that does not register for this long is disconnected." engine:"native"`
	RequestTimeout      Duration `toml:"plugin_request_timeout" help:"A plugin that does not answer for this long is disconnected, and the pod goes on without it, unless the plugin has registered another failure policy." engine:"native"`
	DisableConnections  bool     `toml:"disable_connections" help:"Only the plugins of plugin_dir are used; none can connect." engine:"native"`

	Validate              bool     `toml:"default_validator" help:"The rules below hold: berth refuses containers that plugins have changed against them." engine:"native"`
	RejectHooks           bool     `toml:"reject_oci_hook_adjustment" help:"Refuse OCI hooks of plugins." engine:"native"`
	RejectRuntimeDefault  bool     `toml:"reject_runtime_default_seccomp_adjustment" help:"Refuse another seccomp filter for a container with runtime/default." engine:"native"`
	RejectUnconfined      bool     `toml:"reject_unconfined_seccomp_adjustment" help:"Refuse a seccomp filter for an unconfined container." engine:"native"`
	RejectCustom          bool     `toml:"reject_custom_seccomp_adjustment" help:"Refuse another seccomp filter for a container with a profile of its own." engine:"native"`
	RejectNamespaces      bool     `toml:"reject_namespace_adjustment" help:"Refuse other namespaces." engine:"native"`
	RejectSysctls         bool     `toml:"reject_sysctl_adjustment" help:"Refuse sysctls." engine:"native"`
	RequiredPlugins       []string `toml:"required_plugins" help:"Names of plugins without which no container is created, those of static pods included." engine:"native"`
	TolerateMissingPlugin string   `toml:"tolerate_missing_plugins_annotation" help:"Annotation with which a container may be created without the required plugins. Empty: none." engine:"native"`
}

// Where plugins of the berth with the default state directory are, as plugins and operators know it
// from other runtimes.
const (
	nriSocket    = "/var/run/nri/nri.sock"
	nriPluginDir = "/opt/nri/plugins"
)

// NRIPlaces returns the path of the socket for NRI plugins, and the directory of the plugins that berth starts.
// Each is "" if there is none.
func (d *Daemon) NRIPlaces() (socket, plugins string) {
	socket, plugins = nriSocket, nriPluginDir
	if d.State != DefaultState {
		socket, plugins = filepath.Join(d.State, "nri", "nri.sock"), ""
	}
	socket, plugins = cmp.Or(d.NRI.Socket, socket), cmp.Or(d.NRI.PluginDir, plugins)
	if d.NRI.DisableConnections {
		socket = ""
	}
	return socket, plugins
}

// Image has the settings of images and registries.
type Image struct {
	RegistryConfigDirs     []string `toml:"registry_config_dirs" help:"Directories with one folder per registry and a hosts.toml in it." reload:"yes" engine:"native"`
	SearchRegistries       []string `toml:"search_registries" help:"Hosts of the registries (HOST or HOST:PORT) at which an image without a registry in its name is searched, in this order. A pull goes on to the next one if a registry does not have the image, refuses access (401, 403) or cannot be reached. Such a name means the first of these images that the node has. Empty: docker.io alone." reload:"yes" engine:"native"`
	CredentialFiles        []string `toml:"credential_files" help:"Files with credentials for registries, in the format of docker's config.json, with its credential helpers (docker-credential-*). They are used for hosts for which a request has no credentials, each entry for the host that it names, mirrors included. A file that does not exist has none." reload:"yes" engine:"native"`
	DecryptionKeysDir      string   `toml:"decryption_keys_dir" help:"Directory with private keys (RSA or ECDSA; PEM, DER or JWK; one for each file), with which layers of images are decrypted, as with CRI-O's decryption_keys_path. It is read for each pull of an encrypted image, so a change counts at once. A file that other users can use is not used. docs/howto/encrypted-images.md is the guide. Empty: encrypted images are refused." reload:"yes" engine:"native"`
	Policy                 string   `toml:"policy" help:"File that says which images may be used, in the format of containers-policy.json(5), such as /etc/containers/policy.json. It is read for each pull and each container, so a change counts at once. A file that cannot be read, or is wrong, refuses all images. docs/howto/verify-images.md is the guide. Empty: all images." reload:"yes" engine:"native"`
	PolicyDir              string   `toml:"policy_dir" help:"Directory with such files for single namespaces of Kubernetes: NAMESPACE.json. For the pods of that namespace it takes the place of image.policy, for pulls and for containers. The other namespaces have image.policy. A directory that cannot be read refuses all images of pods that have a namespace, and a file those of its namespace. Empty: none." reload:"yes" engine:"native"`
	LookasideDir           string   `toml:"lookaside_dir" help:"Directory of files that say where signatures of GPG keys (signedBy in image.policy) are, in the format of containers-registries.d(5). Without an entry for an image they are in /var/lib/containers/sigstore. A directory that does not exist has no entries." reload:"yes" engine:"native"`
	VerifierDir            string   `toml:"verifier_dir" help:"Directory of programs that say whether an image may be used, as those of containerd's plugin io.containerd.image-verifier.v1.bindir. All must accept it, each within 10s. A directory that does not exist refuses all images. Empty: none is asked." reload:"yes" engine:"native"`
	UnnamedSignatures      bool     `toml:"unnamed_signatures" help:"Signatures that name no repository count, as those in bundles of cosign 3. Then an image that the key has signed for one repository is accepted in every repository." reload:"yes" engine:"native"`
	PreloadedDirs          []string `toml:"preloaded_dirs" help:"Directories of 'berth image preload' whose images are used where they lie. A directory that does not exist is skipped." engine:"native"`
	Snapshotter            string   `toml:"snapshotter" help:"What root filesystems are made of the layers that berth has unpacked: mounts that share the layers (overlay), or a copy of them for each container (native). auto: overlay, and native where the file system of root cannot hold overlays. See running.md." oneof:"auto overlay native" engine:"native"`
	Snapshotters           []string `toml:"snapshotters" help:"Proxy snapshotters of containerd, NAME=SOCKET: stargz=/run/containerd-stargz-grpc/containerd-stargz-grpc.sock. They make root filesystems from layers that they fetch when a container reads them, for the handlers that name them (handlers.NAME.snapshotter)." engine:"native"`
	ImportDirs             []string `toml:"import_dirs" help:"Directories with docker or OCI archives (.tar, .tar.gz, .tgz, .tar.zst, .tar.zstd, .tzst, also in capital letters) that the daemon imports in the background: those that are there and those that appear, each once until its content changes. A directory that does not exist is skipped. Who can write there decides what images of any name contain." reload:"yes" engine:"native"`
	ImportPinned           bool     `toml:"import_pinned" help:"Images of import_dirs are protected from the kubelet's garbage collection. It counts for archives that are imported from then on." reload:"yes" engine:"native"`
	MaxConcurrentDownloads int      `toml:"max_concurrent_downloads" help:"Layers fetched at a time for one image." reload:"yes" engine:"native"`
	MaxTotalDownloads      int      `toml:"max_total_downloads" help:"Layers, and parts of large layers, fetched at a time on the node, for all images together. A layer for a pod gets the next free place before those that are fetched again in the background. 0: any number." reload:"yes" engine:"native"`
	DownloadRateMiB        int      `toml:"download_rate_mib" help:"Limit for the layers that all pulls together download, in MiB per second. Pulls for pods go first. Repairs in the background use what is left. 0 means unlimited." reload:"yes" engine:"native"`
	LayerConnections       int      `toml:"layer_connections" help:"Connections that fetch one large layer, each another part of it, while image.max_total_downloads has free places. A registry that cannot send a part of a layer is asked with one. 1: no layer is fetched in parts." reload:"yes" engine:"native"`
	LayerPartMiB           int      `toml:"layer_part_mib" help:"Size of the parts in which a large layer is fetched, in MiB. A layer with more than two parts to fetch is large." reload:"yes" engine:"native"`
	PartsMemoryMiB         int      `toml:"parts_memory_mib" help:"Memory for the parts of all layers that have arrived before their turn, in MiB. When it is full, the layers that need more are fetched with fewer connections." reload:"yes" engine:"native"`
	MaxLayerGiB            int      `toml:"max_layer_gib" help:"Largest size of one unpacked layer, in GiB. A layer that is larger is refused." reload:"yes" engine:"native"`
	UnpackCgroup           string   `toml:"unpack_cgroup" help:"Cgroup below which each process that unpacks a layer has a cgroup of its own: a path from the root of the hierarchy, or a systemd slice, such as berth-unpack.slice, whose limits of CPU, memory and IO then hold for all of them together (cgroup v2; with v1 those of memory alone). Downloads are in the daemon's own cgroup. Empty: /berth-INSTANCE-unpack, without limits of its own." engine:"native"`
	NoProgressTimeout      Duration `toml:"no_progress_timeout" help:"A pull that receives nothing for this long fails. Over a Docker Engine: one without progress." reload:"yes"`
}

// Stream is the streaming server.
type Stream struct {
	Address     string   `toml:"address" help:"Address that exec, attach and port-forward listen on."`
	Port        int      `toml:"port" help:"Port of the same; 0 picks a free one."`
	IdleTimeout Duration `toml:"idle_timeout" help:"A stream without traffic is closed after this long." reload:"yes"`

	TLS           string `toml:"tls" help:"Whether the server speaks TLS: off, with tls_cert and tls_key (files), or with a certificate that it makes and no client can verify (self-signed)." oneof:"off files self-signed"`
	TLSCert       string `toml:"tls_cert" help:"PEM file of the certificate and its chain. It is read again when it changes."`
	TLSKey        string `toml:"tls_key" help:"PEM file of the certificate's key."`
	TLSClientCA   string `toml:"tls_client_ca" help:"PEM file of authorities. Clients must have a certificate of one of them. Empty: the URL alone lets a client in."`
	TLSMinVersion string `toml:"tls_min_version" help:"Oldest version of TLS that is spoken." oneof:"1.2 1.3"`

	TLSCipherSuites []string `toml:"tls_cipher_suites" help:"Cipher suites of TLS 1.2, by their IANA names (TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256). TLS 1.3 has none to choose. Empty: those that Go considers safe."`
}

// Jobs are the limits of jobs.
type Jobs struct {
	StageTimeout Duration `toml:"stage_timeout" help:"A job that makes no progress in one stage for this long is torn down." reload:"yes"`
	TotalTimeout Duration `toml:"total_timeout" help:"A job is torn down after this long in all." reload:"yes"`
}

// Stats are figures of pods and containers.
type Stats struct {
	Period     Duration `toml:"period" help:"Time over which a rate of CPU is measured (usageNanoCores)."`
	PodMetrics []string `toml:"pod_metrics" help:"Groups of metrics in ListPodSandboxMetrics." oneof:"cpu memory process pressure disk spec hugetlb network"`
}

// Checkpoint has the settings of archives of running containers.
type Checkpoint struct {
	Enabled bool   `toml:"enabled" help:"CheckpointContainer writes a running container into an archive, and CreateContainer continues one. Who may read the archive may read the container's memory, with its secrets." reload:"yes" engine:"native"`
	CRIU    string `toml:"criu" help:"Absolute path of the program CRIU. Linux 6.13 and later need CRIU 4.1 or later. berth info shows whether it works." reload:"yes" engine:"native"`
	Runtime string `toml:"runtime" help:"Absolute path of the runc that restores containers of pods without a handler of kind oci." reload:"yes" engine:"native"`
}

// Metrics are for Prometheus.
type Metrics struct {
	Listen   string   `toml:"listen" help:"Address at which the path /metrics is served: HOST:PORT, or unix:///PATH for a socket of root. A host that is not a loopback address needs TLS. Empty: none." reload:"yes"`
	TLSCert  string   `toml:"tls_cert_file" help:"PEM file of the server's certificate and its chain. It is read again when it changes. Empty: plain HTTP." reload:"yes"`
	TLSKey   string   `toml:"tls_key_file" help:"PEM file of the certificate's key." reload:"yes"`
	ClientCA string   `toml:"client_ca_file" help:"PEM file of authorities. Clients must have a certificate of one of them. Empty: every client that reaches the address is served." reload:"yes"`
	Peers    []string `toml:"peers" help:"Other runtimes whose metrics are shown as well, made from berth's, so that their dashboards and alerts work. dockershim has those of engine docker." oneof:"containerd crio dockershim" reload:"yes"`
}

// Traces are for a receiver of OpenTelemetry's protocol, OTLP.
type Traces struct {
	Endpoint     string `toml:"endpoint" help:"Receiver of the spans: http://HOST:PORT, or https://HOST:PORT for TLS. With protocol http the address may have a path, to which v1/traces is added. Empty: no traces." reload:"yes"`
	Protocol     string `toml:"protocol" help:"How the receiver is called: OTLP over gRPC (usually port 4317), or over HTTP with protobuf (usually port 4318)." oneof:"grpc http" reload:"yes"`
	SamplingRate int    `toml:"sampling_rate_per_million" help:"How many of a million traces that begin at berth are kept. berth keeps the trace of a client, such as a kubelet, if the client keeps it." reload:"yes"`
	CA           string `toml:"tls_ca_file" help:"PEM file of the authorities that verify the receiver. Empty: those of the system." reload:"yes"`
	TLSCert      string `toml:"tls_cert_file" help:"PEM file of the certificate that the daemon shows to the receiver. It is read for each connection. Empty: none." reload:"yes"`
	TLSKey       string `toml:"tls_key_file" help:"PEM file of the certificate's key." reload:"yes"`
}

// Page is the node page.
type Page struct {
	Listen   string `toml:"listen" help:"Address of the page, HOST:PORT. A host that is not a loopback address needs TLS and the token. Empty: none." flag:"page" reload:"yes"`
	Auth     string `toml:"auth" help:"Who may see the page: token is who has the address that berth page prints on the node; none is every process and user that reaches the address, containers in the host's network included. They can read the logs of all containers." oneof:"token none" reload:"yes"`
	TLSCert  string `toml:"tls_cert_file" help:"PEM file of the server's certificate and its chain. It is read again when it changes. Empty: plain HTTP." reload:"yes"`
	TLSKey   string `toml:"tls_key_file" help:"PEM file of the certificate's key." reload:"yes"`
	ClientCA string `toml:"client_ca_file" help:"PEM file of authorities. Clients must have a certificate of one of them, besides the token. Empty: the token alone." reload:"yes"`
}

// Debug helps to find faults.
type Debug struct {
	ShowSecrets bool `toml:"show_secrets" help:"Verbose statuses (crictl inspect, crictl info, berth info) show the values of environments, those of containers and defaults.env. Otherwise they show [hidden]. Every user of the CRI socket can see them." reload:"yes"`
}

// The socket and the directories of the default instance.
const (
	DefaultSocket = "/run/berth/berth.sock"
	DefaultRoot   = "/var/lib/berth"
	DefaultState  = "/run/berth"
)

// DefaultDaemon returns the default configuration.
func DefaultDaemon() *Daemon {
	return &Daemon{
		Listen: "unix://" + DefaultSocket,
		Engine: "native",
		Root:   DefaultRoot,
		State:  DefaultState,
		Log:    Log{Level: "info", Format: "auto"},
		Network: Network{
			Mode:         "cni",
			HostPorts:    "refuse",
			MaxConfNum:   1,
			InProcess:    true,
			MaxProcesses: 32,
			IPPreference: "ipv4",
			StatusGrace:  Duration(10 * time.Second),
			Hairpin:      "auto",
			ConfDir:      "/etc/cni/net.d",
			RoutesFile:   "/etc/berth/routes",
			BinDirs:      []string{"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"},
			Subnets:      []string{},
			Cluster:      []string{},
			NetNSDir:     "/run/netns",
		},
		Docker: Docker{
			Endpoint: "unix:///var/run/docker.sock", Timeout: Duration(2 * time.Minute),
			Adopt: "auto", FormerRoots: []string{"/var/lib/dockershim", "/var/lib/cri-dockerd"}, FormerCNICache: "/var/lib/cni/cache",
		},
		Runtime: Runtime{
			CgroupDriver: "auto", ScopePrefix: "cri-containerd", MaxLogLineSize: 16384, LogRateMiB: 32, OwnInit: true, FirstProjectID: 1_500_000_000,
			SELinux: "auto", SELinuxVolume: "private", SELinuxRange: 1024, AppArmor: "auto", CDISpecDirs: []string{"/etc/cdi", "/var/run/cdi"}, HookDirs: []string{},
			AbsentSources: []string{}, ImageVolumes: "bind", PodAnnotations: []string{}, ContainerAnnotations: []string{}, AllowedAnnotations: []string{},
		},
		Default: Default{
			Seccomp: "unconfined", Capabilities: request.DefaultCapabilities(),
			Env: []string{}, Ulimits: []string{}, Sysctls: []string{}, Devices: []string{},
		},
		NRI: NRI{
			Enabled: true, ConfigDir: "/etc/nri/conf.d",
			RegistrationTimeout: Duration(5 * time.Second), RequestTimeout: Duration(2 * time.Second),
			RequiredPlugins: []string{},
		},
		Image: Image{
			RegistryConfigDirs:     []string{"/etc/berth/certs.d", "/etc/containerd/certs.d", "/etc/docker/certs.d"},
			SearchRegistries:       []string{},
			CredentialFiles:        []string{},
			LookasideDir:           "/etc/containers/registries.d",
			PreloadedDirs:          []string{"/usr/share/berth/preloaded"},
			Snapshotter:            "auto",
			Snapshotters:           []string{},
			ImportDirs:             []string{"/var/lib/berth-images"},
			ImportPinned:           true,
			MaxConcurrentDownloads: 3,
			MaxTotalDownloads:      12, // four pulls at their full width: together they fill the link of most nodes
			LayerConnections:       4,
			LayerPartMiB:           8,
			PartsMemoryMiB:         64, // for the other parts of two or three layers
			MaxLayerGiB:            128,
			NoProgressTimeout:      Duration(5 * time.Minute),
		},
		Stream:     Stream{Address: "127.0.0.1", IdleTimeout: Duration(4 * time.Hour), TLS: "off", TLSMinVersion: "1.2", TLSCipherSuites: []string{}},
		Pools:      Pools{NetworkNamespaces: 4, RootFilesystems: 16},
		Jobs:       Jobs{StageTimeout: Duration(10 * time.Minute), TotalTimeout: Duration(time.Hour)},
		Checkpoint: Checkpoint{CRIU: "/usr/sbin/criu", Runtime: "/usr/sbin/runc"},
		Metrics:    Metrics{Peers: []string{}},
		Traces:     Traces{Protocol: "grpc", SamplingRate: maxSamplingRate},
		Page:       Page{Auth: "token"},
		Stats: Stats{
			Period:     Duration(5 * time.Second),
			PodMetrics: []string{"cpu", "memory", "process", "pressure", "disk", "spec", "hugetlb", "network"},
		},
	}
}

// SocketPath is the file of the CRI socket.
func (d *Daemon) SocketPath() string { return strings.TrimPrefix(d.Listen, "unix://") }
