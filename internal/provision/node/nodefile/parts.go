package nodefile

// Network is how pods reach the network.
type Network struct {
	Mode       string     `json:"mode" help:"cni leaves the configuration to whoever installs the cluster's network; builtin is berth's own bridge; kubenet writes a configuration of ptp, host-local and portmap for podCIDRs." oneof:"cni builtin kubenet"`
	PodCIDRs   []string   `json:"podCIDRs" help:"Addresses of this node's pods: one CIDR, or one of each family." example:"[10.244.1.0/24]"`
	MTU        int        `json:"mtu" help:"MTU of pods' links. 0: chosen by the plugin." example:"1450"`
	Plugins    []Asset    `json:"plugins" help:"Archives of CNI plugins. Empty: the package of the distribution, where a mode needs plugins."`
	ConfDir    string     `json:"confDir" help:"Directory of CNI configurations."`
	BinDir     string     `json:"binDir" help:"Directory that CNI plugins are installed to. Empty: as the distribution has it. A containerd before 2.1 looks into one directory alone: then this one or, if it is empty, the directory that has the plugins of the CNI configuration." example:"/opt/cni/bin"`
	Masquerade Masquerade `json:"masquerade" help:"Hides pods' addresses behind the node's when they talk to the outside, by an nftables table of berth's own."`
}

// Masquerade is IP masquerade of pods.
type Masquerade struct {
	Enabled  bool     `json:"enabled" help:"Masquerade what pods send outside nonMasqueradeCIDRs."`
	NonCIDRs []string `json:"nonMasqueradeCIDRs" help:"Networks that see pods' own addresses. Empty, or /0: nothing is masqueraded in that family." example:"[10.0.0.0/8]"`
}

// Kernel is modules, sysctls and swap.
type Kernel struct {
	Modules  []string          `json:"modules" help:"Modules that are loaded now and at boot, beside overlay, br_netfilter and what else the node needs." example:"[nf_conntrack]"`
	Defaults *bool             `json:"defaultSysctls" help:"Set what a node of Kubernetes wants (forwarding, inotify, conntrack, ...). Unset: yes. The forwarding that kubenet needs is set in any case." example:"true"`
	Sysctls  map[string]string `json:"sysctls" help:"Sysctls; they win over the defaults." example:"{vm.max_map_count: \"262144\"}"`
	Swap     string            `json:"swap" help:"off turns swap off and keeps it off; keep leaves it alone." oneof:"keep off"`
}

// Packages is packages of the distribution.
type Packages struct {
	Install []string `json:"install" help:"Packages to install beside those that the node needs." example:"[nfs-common]"`
	Base    *bool    `json:"base" help:"Install what a node needs (conntrack, nftables, ...). Unset: yes." example:"true"`
}

// Group is a group of the machine.
type Group struct {
	Name   string `json:"name" help:"Name of the group." required:"yes" example:"ops"`
	GID    *int   `json:"gid" help:"Number. Unset: chosen by the machine." example:"2000"`
	System bool   `json:"system" help:"A group of the system."`
}

// User is a user of the machine.
type User struct {
	Name   string   `json:"name" help:"Name of the user." required:"yes" example:"ops"`
	UID    *int     `json:"uid" help:"Number. Unset: chosen by the machine." example:"2000"`
	Group  string   `json:"group" help:"First group. Empty: one of the user's name." example:"ops"`
	Groups []string `json:"groups" help:"Further groups." example:"[adm]"`
	Home   string   `json:"home" help:"Home directory. berth does not create it; files can." example:"/home/ops"`
	Shell  string   `json:"shell" help:"Shell. Empty: none may log in." example:"/bin/bash"`
	System bool     `json:"system" help:"A user of the system."`
}

// File is a file of the user's own.
type File struct {
	Path     string   `json:"path" help:"Path of the file." required:"yes" example:"/etc/motd"`
	Type     string   `json:"type" help:"What it is." oneof:"file directory symlink" example:"file"`
	Content  string   `json:"content" lines:"yes" help:"Content of a file." example:"\"hello\\n\""`
	Source   *Asset   `json:"source" help:"Asset that is the content of a file, in place of content."`
	Target   string   `json:"target" help:"Where a symlink points." example:"/usr/share/zoneinfo/UTC"`
	Mode     string   `json:"mode" help:"Octal permissions. Empty: \"0644\", or \"0755\" for a directory." example:"\"0644\""`
	Owner    string   `json:"owner" help:"Owner, by name or number. Empty: root." example:"root"`
	Group    string   `json:"group" help:"Group, by name or number. Empty: root." example:"root"`
	Keep     bool     `json:"ifNotExists" help:"Leave a file that is there as it is."`
	Restarts []string `json:"restarts" help:"Units that are restarted when the file changes." example:"[chrony.service]"`
}

// Unit is a systemd unit of the user's own, or a drop-in.
type Unit struct {
	Name    string            `json:"name" help:"Full name." required:"yes" example:"ntp-sync.service"`
	Content string            `json:"content" lines:"yes" help:"The unit file. Empty: the unit is there already." example:"\"[Service]\\nExecStart=/bin/true\\n\""`
	DropIns map[string]string `json:"dropIns" lines:"yes" help:"File name to content of drop-ins." example:"{10-nice.conf: \"[Service]\\nNice=5\\n\"}"`
	Enabled *bool             `json:"enabled" help:"Start at boot. Unset: yes where content is given, else as it is." example:"true"`
	Running *bool             `json:"running" help:"Run now. Unset: yes where content is given, else as it is." example:"true"`
}

// Hook is a command with a unit of its own.
type Hook struct {
	Name     string   `json:"name" help:"Name of the hook; its unit is berth-hook-NAME.service." required:"yes" example:"mount-cache"`
	Command  []string `json:"command" help:"Program and arguments." required:"yes" example:"[/usr/local/bin/mount-cache, --all]"`
	When     string   `json:"when" help:"Before or after the runtime starts." oneof:"before after" example:"before"`
	Requires []string `json:"requires" help:"Units that must run first." example:"[network-online.target]"`
	Disabled bool     `json:"disabled" help:"Keep the entry, run nothing."`
}

// Kubelet is the kubelet.
type Kubelet struct {
	Enabled      bool              `json:"enabled" help:"Write the kubelet's configuration and unit."`
	Assets       []Asset           `json:"assets" help:"The kubelet's binary, and kubeadm and kubectl if you want them. Empty: they are there."`
	Config       map[string]any    `json:"config" help:"Fields of the KubeletConfiguration. cgroupDriver and containerRuntimeEndpoint follow the runtime." example:"{maxPods: 250}"`
	Flags        map[string]string `json:"flags" help:"Options of the kubelet's command line, without dashes." example:"{node-labels: \"zone=a\"}"`
	Kubeadm      bool              `json:"kubeadm" help:"kubeadm writes the configuration and the kubeconfig: berth writes its unit with kubeadm's drop-in only, and what kubeadm's preflight checks ask for."`
	Bootstrap    string            `json:"bootstrapKubeconfig" help:"Kubeconfig that the kubelet gets its certificate with." example:"/etc/kubernetes/bootstrap-kubelet.conf"`
	Kubeconfig   string            `json:"kubeconfig" help:"Kubeconfig of the kubelet. Empty: it runs static pods only." example:"/etc/kubernetes/kubelet.conf"`
	ManifestsDir string            `json:"staticPodPath" help:"Directory of static pods."`
}

// Crictl is the file that crictl reads.
type Crictl struct {
	Enabled *bool `json:"enabled" help:"Write /etc/crictl.yaml. Unset: yes." example:"true"`
	Debug   bool  `json:"debug" help:"Let crictl tell more."`
	Timeout int   `json:"timeout" help:"Seconds that crictl waits for an answer. 0: its default." example:"10"`
}

// Image is an archive of images.
type Image struct {
	Source  string   `json:"source" help:"Path, http(s) URL, or oci:// reference of an archive as docker save or an OCI layout has it." required:"yes" example:"/opt/images/base.tar"`
	Mirrors []string `json:"mirrors" help:"Tried in order when source does not answer." example:"[https://mirror.example/base.tar]"`
	Digest  string   `json:"digest" help:"sha256: or sha512: and the hash of the archive." required:"yes" example:"sha256:0000000000000000000000000000000000000000000000000000000000000000"`
	Names   []string `json:"names" help:"Images that the runtime knows afterwards; when it knows them all, nothing is loaded." required:"yes" example:"[registry.example/base:1]"`
	Arch    string   `json:"arch" help:"Loaded on machines of this architecture only. Empty: on all." oneof:"amd64 arm64 ppc64le riscv64 s390x" example:"amd64"`
	Access
}

// Proxy is the proxy settings.
type Proxy struct {
	HTTP    string   `json:"http" help:"HTTP_PROXY." example:"http://proxy.example:3128"`
	HTTPS   string   `json:"https" help:"HTTPS_PROXY." example:"http://proxy.example:3128"`
	NoProxy []string `json:"noProxy" help:"NO_PROXY. localhost, pod and service networks are added." example:"[.internal, 10.0.0.0/8]"`
}

// Logs is log rotation.
type Logs struct {
	Rotate  bool   `json:"rotate" help:"Rotate container logs with logrotate, where no kubelet runs; for docker, by its log driver."`
	MaxSize string `json:"maxSize" help:"Size after which a log is rotated."`
	MaxFile int    `json:"maxFiles" help:"Logs that are kept."`
}

// Boot is when the node applies its file by itself.
type Boot struct {
	Enabled bool     `json:"enabled" help:"Apply this file at boot, by berth-node.service."`
	Drift   Duration `json:"driftInterval" help:"Apply it again so often, by berth-node.timer. Empty: never." example:"1h"`
}
