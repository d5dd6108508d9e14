// Package nodefile is the node file: its fields, defaults, help, checks, schema and sample. It
// knows no task, no distribution and no machine; package node turns a node file into tasks.
package nodefile

import "github.com/berthrun/berth/internal/registries"

// APIVersion and Kind are what a description must say of itself.
const (
	APIVersion = "berth.run/v1alpha1"
	Kind       = "Node"
)

const (
	// DefaultFile is where a machine has its node file.
	DefaultFile = "/etc/berth/node.yaml"
	// MaxSize bounds a node file, in bytes.
	MaxSize = 4 << 20
)

// Node is the content of a node file.
type Node struct {
	APIVersion string `json:"apiVersion" help:"Version of this format." oneof:"berth.run/v1alpha1" required:"yes"`
	Kind       string `json:"kind" help:"Kind of this document." oneof:"Node" required:"yes"`

	Runtime    Runtime               `json:"runtime" help:"The container runtime and its options." required:"yes"`
	Registries []registries.Registry `json:"registries" help:"Where images of a registry come from, in order. berth and containerd read it as one hosts.toml a registry, crio as registries.conf; docker knows mirrors of docker.io only."`
	Network    Network               `json:"network" help:"How pods reach the network."`
	Kernel     Kernel                `json:"kernel" help:"Kernel modules, sysctls and swap."`
	Packages   Packages              `json:"packages" help:"Packages of the distribution."`
	Groups     []Group               `json:"groups" help:"Groups that must be there."`
	Users      []User                `json:"users" help:"Users that must be there."`
	Files      []File                `json:"files" help:"Files of your own."`
	Units      []Unit                `json:"units" help:"systemd units of your own, and drop-ins for others."`
	Hooks      []Hook                `json:"hooks" help:"Commands that run as units of their own before or after the runtime."`
	Kubelet    Kubelet               `json:"kubelet" help:"The kubelet. Left alone unless enabled."`
	Crictl     Crictl                `json:"crictl" help:"The file that crictl reads."`
	Images     []Image               `json:"images" help:"Archives of images that are loaded into the runtime, each once."`
	Proxy      Proxy                 `json:"proxy" help:"Proxy of the runtime and the kubelet."`
	Logs       Logs                  `json:"logs" help:"Rotation of container logs where the kubelet does not do it."`
	Boot       Boot                  `json:"boot" help:"When this file is applied again by the node itself."`
}

// BerthOverDocker reports whether berth serves CRI over the node's docker: for a kubelet of the
// node file, or at a socket for one that somebody else set up.
func (n *Node) BerthOverDocker() bool {
	return n.Runtime.Name == "docker" && (n.Kubelet.Enabled || n.Kubelet.Kubeadm || n.Runtime.Socket != "")
}

// Runtime is the container runtime.
type Runtime struct {
	Name         string            `json:"name" help:"Which runtime. With docker, berth serves CRI over it where the node has a kubelet (kubelet.enabled or kubelet.kubeadm) or runtime.socket is set." oneof:"berth containerd crio docker" required:"yes"`
	Version      string            `json:"version" help:"Version of the runtime. It decides which configuration is written. A whole version of a package, as 1.7.24~ds1-6, is installed, too. Empty: the version in the assets' names, or the lowest version of the distribution's package." example:"\"2.4.2\""`
	Assets       []Asset           `json:"assets" help:"Archives or binaries that the runtime is installed from. Empty: packages of the distribution; for berth, the running binary itself. A set for containerd has exactly one runc in it."`
	SkipInstall  bool              `json:"skipInstall" help:"Configure only; the binaries and their unit are there and stay as they are. What must change of the unit goes to a drop-in."`
	Socket       string            `json:"socket" help:"Path of the CRI socket. Empty: the usual one of the runtime. For docker it is berth's, and lets berth serve CRI without a kubelet in this file, too." example:"/run/berth/berth.sock"`
	Root         string            `json:"root" help:"Directory of images and containers. Empty: the usual one." example:"/var/lib/berth"`
	State        string            `json:"state" help:"Directory of what dies at reboot. Empty: the usual one." example:"/run/berth"`
	LogLevel     string            `json:"logLevel" help:"Least level that the runtime logs." oneof:"debug info warn error"`
	CgroupDriver string            `json:"cgroupDriver" help:"auto is systemd, with both versions of cgroups. On cgroup v1 the kubelet's configuration gets failCgroupV1: false, without which it does not start from 1.35 on." oneof:"auto systemd cgroupfs"`
	CgroupParent string            `json:"runtimeCgroups" help:"Slice that the runtime's unit runs in, with the systemd driver." example:"/runtime.slice"`
	SandboxImage string            `json:"sandboxImage" help:"Image of the pause container. Not for berth and docker: berth needs none, and has its own for docker. Empty: the default of the runtime." example:"registry.k8s.io/pause:3.10.1"`
	Handlers     []Handler         `json:"handlers" help:"Runtime classes beside the default one."`
	Default      string            `json:"defaultHandler" help:"Handler of pods that name no runtime class. Empty: runc (crun for crio, berth itself for berth)." example:"runc"`
	GVisor       GVisor            `json:"gvisor" help:"gVisor as handler runsc."`
	NVIDIA       NVIDIA            `json:"nvidia" help:"GPUs of NVIDIA."`
	SELinux      *bool             `json:"selinux" help:"Label containers. Unset: as the machine has it." example:"true"`
	CDI          CDI               `json:"cdi" help:"Container device interface."`
	NRI          NRI               `json:"nri" help:"Node resource interface: plugins that adjust containers."`
	Snapshotter  string            `json:"snapshotter" help:"Snapshotter of containerd, storage driver of docker and crio. Empty: the default." example:"overlayfs"`
	Config       Config            `json:"config" help:"What this format has no field for."`
	Options      []string          `json:"options" help:"Options added to the runtime's command line." example:"[--log-level=debug]"`
	Environment  map[string]string `json:"environment" help:"Environment of the runtime." example:"{GOGC: \"50\"}"`
	Service      Service           `json:"unit" help:"The runtime's unit."`
}

// Asset is a file that is fetched, known by its hash.
type Asset struct {
	Source  string   `json:"source" help:"Path, directory, http(s) URL, or oci://host/repository:tag." required:"yes" example:"https://assets.example/containerd-2.4.2-linux-amd64.tar.gz"`
	Mirrors []string `json:"mirrors" help:"Tried in order when source does not answer." example:"[https://mirror.example/containerd-2.4.2-linux-amd64.tar.gz]"`
	Digest  string   `json:"digest" help:"sha256: or sha512: and the hash of the file. Only a directory needs none." example:"sha256:0000000000000000000000000000000000000000000000000000000000000000"`
	Arch    string   `json:"arch" help:"Taken on machines of this architecture only. Empty: on all." oneof:"amd64 arm64 ppc64le riscv64 s390x" example:"amd64"`
	Name    string   `json:"name" help:"Name that a single binary is installed as. Empty: its file name." example:"runc"`
	Access
}

// Access is how the servers of a source and its mirrors are reached. Its files are on the machine
// where berth runs, and are read at each fetch.
type Access struct {
	CA          []string `json:"ca" help:"Files with certificates of authorities that sign for the servers, beside those that the machine trusts. A registry on loopback speaks TLS then." example:"[/etc/ssl/assets-ca.pem]"`
	ClientCert  string   `json:"clientCert" help:"Client certificate for the servers." example:"/etc/ssl/assets.cert"`
	ClientKey   string   `json:"clientKey" help:"Key of the client certificate. Empty: it is in the same file." example:"/etc/ssl/assets.key"`
	Credentials string   `json:"credentials" help:"File with \"user:password\", or an Authorization header that begins with \"Bearer \" or \"Basic \": for the host of source and no other. A config.json of docker says itself which hosts it is for, mirrors too." example:"/etc/berth/assets.auth"`
}

// Handler is a runtime class entry.
type Handler struct {
	Name                  string         `json:"name" help:"Name that a RuntimeClass gives as its handler." required:"yes" example:"crun"`
	Type                  string         `json:"type" help:"oci is a binary with runc's command line; shim is a containerd shim of version 2." oneof:"oci shim" example:"oci"`
	Path                  string         `json:"path" help:"Path of the binary. For a shim in PATH it may be empty." example:"/usr/bin/crun"`
	RuntimeType           string         `json:"runtimeType" help:"Type name of a shim." example:"io.containerd.kata.v2"`
	Sandbox               string         `json:"sandbox" help:"What makes the sandbox of a pod (berth): runtime is the runtime of a shim, which is the sandbox itself, as gVisor and Kata Containers are; api is the shim, by containerd's sandbox API. Empty: berth." example:"runtime"`
	ConfigPath            string         `json:"configPath" help:"Configuration file that is passed to a shim." example:"/etc/kata-containers/configuration.toml"`
	Root                  string         `json:"root" help:"Where the OCI runtime keeps its state." example:"/run/crun"`
	Snapshotter           string         `json:"snapshotter" help:"Snapshotter of pods of this class (containerd)." example:"overlayfs"`
	PodAnnotations        []string       `json:"podAnnotations" help:"Annotations of pods that reach the runtime; * matches." example:"[io.katacontainers.*]"`
	PrivilegedWithoutHost bool           `json:"privilegedWithoutHostDevices" help:"Privileged containers get no devices of the host."`
	Options               map[string]any `json:"options" help:"Options of a shim, as containerd's configuration names them." example:"{NoNewKeyring: true}"`
}

// GVisor is the gVisor handler.
type GVisor struct {
	Enabled  bool   `json:"enabled" help:"Write the handler runsc and its configuration. The binaries come with runtime.assets, or are there."`
	Platform string `json:"platform" help:"How gVisor intercepts system calls." oneof:"systrap kvm"`
}

// NVIDIA is the GPU set-up.
type NVIDIA struct {
	Enabled bool   `json:"enabled" help:"Let containers use GPUs."`
	Mode    string `json:"mode" help:"cdi makes a CDI specification with nvidia-ctk; handler adds the handler nvidia; auto is cdi where nvidia-ctk is installed, and handler elsewhere." oneof:"auto cdi handler"`
	Default bool   `json:"default" help:"Make nvidia the default handler (mode handler)."`
	Runtime string `json:"runtimePath" help:"Path of nvidia-container-runtime (mode handler)."`
}

// CDI is the container device interface.
type CDI struct {
	Enabled  bool     `json:"enabled" help:"Give containers the devices that CDI specifications describe."`
	SpecDirs []string `json:"specDirs" help:"Directories of specifications."`
}

// NRI is the node resource interface.
type NRI struct {
	Enabled             *bool    `json:"enabled" help:"Accept plugins. Unset: as the runtime has it." example:"true"`
	Socket              string   `json:"socket" help:"Path of the socket that plugins connect to. Empty: the default." example:"/var/run/nri/nri.sock"`
	RegistrationTimeout Duration `json:"pluginRegistrationTimeout" help:"Time that a plugin has to register. Empty: the default of the runtime." example:"5s"`
	RequestTimeout      Duration `json:"pluginRequestTimeout" help:"Time that a plugin has to answer. Empty: the default of the runtime." example:"2s"`
}

// Config is what goes into the runtime's own configuration untouched.
type Config struct {
	Additions map[string]any `json:"additions" help:"Dotted path to value, set in the runtime's configuration after all else. A part with dots in it is quoted." example:"{'plugins.\"io.containerd.cri.v1.images\".max_concurrent_downloads': 5}"`
	Override  string         `json:"override" lines:"yes" help:"The whole configuration file, in place of the one that is made." example:"\"version = 3\\n\""`
}

// Service is the runtime's unit.
type Service struct {
	NoFile   string `json:"limitNOFILE" help:"Open files." example:"\"1048576\""`
	NProc    string `json:"limitNPROC" help:"Processes." example:"infinity"`
	Core     string `json:"limitCORE" help:"Size of core dumps." example:"infinity"`
	Memlock  string `json:"limitMEMLOCK" help:"Locked memory. Empty: as systemd has it." example:"infinity"`
	Tasks    string `json:"tasksMax" help:"Tasks." example:"infinity"`
	OOMScore *int   `json:"oomScoreAdjust" help:"How willingly the kernel kills the runtime, -1000 to 1000." example:"-999"`
}
