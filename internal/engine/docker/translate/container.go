package translate

import (
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// ContainerInput is what a container depends on.
type ContainerInput struct {
	Spec   *engine.ContainerSpec
	Name   string
	Labels map[string]string
	// SandboxID is the engine's id of the pause container. TargetID is that of the container
	// whose PID namespace is joined, "" for none.
	SandboxID, TargetID string
	// CgroupParent is the cgroup of the pod: a path, or a slice with the systemd driver.
	CgroupParent string
	// Seccomp is the filter of the container, nil for none. AppArmor is its profile, "" for
	// none.
	Seccomp  *specs.LinuxSeccomp
	AppArmor string
	// Defaults hold where the request says nothing.
	Defaults ocispec.Defaults
	// User is who the program runs as; the engine looks nothing up.
	User ocispec.User
	// RaisedOOMScore is the oom_score_adj of the container if the engine cannot set the requested one;
	// else nil.
	RaisedOOMScore *int
	// Devices are the nodes that the container gets, except those of the host that the engine
	// gives to privileged containers.
	Devices []ocispec.Device
	Facts   Facts
}

// Container is the request for a container of a pod.
func Container(in ContainerInput) (client.ContainerCreateOptions, error) {
	none := client.ContainerCreateOptions{}
	config := in.Spec.Config
	args, err := ocispec.Args(config, in.Spec.ImageConfig)
	if err != nil {
		return none, err
	}
	env := envOf(in)
	if err := checkLength(args, env); err != nil {
		return none, err
	}
	host := &container.HostConfig{
		RestartPolicy: neverRestart(), Init: new(bool), LogConfig: logConfig(in.Facts),
		NetworkMode:    container.NetworkMode("container:" + in.SandboxID),
		ReadonlyRootfs: request.Security(config).GetReadonlyRootfs(),
		Privileged:     request.Security(config).GetPrivileged(),
		GroupAdd:       groupsOf(in.User),
		OomScoreAdj:    oomScore(int(config.GetLinux().GetResources().GetOomScoreAdj()), in.RaisedOOMScore),
	}
	setNamespaces(in, host)
	if err := setSecurity(in, host); err != nil {
		return none, err
	}
	if err := setMounts(in, host); err != nil {
		return none, err
	}
	if host.Resources, err = Resources(request.FieldCreate, config.GetLinux().GetResources(), in.Facts); err != nil {
		return none, err
	}
	host.Resources.CgroupParent = in.CgroupParent
	host.Resources.Ulimits = ulimits(in.Defaults.Rlimits)
	if err := setDevices(in, host); err != nil {
		return none, err
	}
	return client.ContainerCreateOptions{Name: in.Name, HostConfig: host, Config: &container.Config{
		Image: in.Spec.ImageID, Labels: in.Labels, Healthcheck: noHealthcheck(),
		Entrypoint: args, Cmd: []string{}, Env: env, WorkingDir: ocispec.WorkingDir(config, in.Spec.ImageConfig), User: userOf(in.User),
		Tty: config.GetTty(), OpenStdin: config.GetStdin(), StdinOnce: config.GetStdinOnce(),
		StopSignal: stopSignal(config),
	}}, nil
}

// maxProgram is the most bytes of arguments and environment: no kernel takes as many, and an engine
// would take long to find that out.
const maxProgram = 8 << 20

func checkLength(args, env []string) error {
	total := 0
	for _, text := range slices.Concat(args, env) {
		total += len(text)
	}
	if total > maxProgram {
		return fielderror.Invalid("config", "arguments and environment are longer than %d bytes", maxProgram)
	}
	return nil
}

// setNamespaces joins the namespaces of the pod.
func setNamespaces(in ContainerInput, host *container.HostConfig) {
	pods := request.SandboxSecurity(in.Spec.SandboxSpec.Config).GetNamespaceOptions()
	own := request.Security(in.Spec.Config).GetNamespaceOptions()
	host.IpcMode = container.IpcMode("container:" + in.SandboxID)
	if pods.GetIpc() == runtimeapi.NamespaceMode_NODE {
		host.IpcMode = "host"
	}
	if pods.GetNetwork() == runtimeapi.NamespaceMode_NODE {
		host.NetworkMode, host.UTSMode = "host", "host"
	}
	if own == nil { // the pod decides
		own = pods
	}
	switch own.GetPid() {
	case runtimeapi.NamespaceMode_POD:
		if own != nil { // the zero value of requests that say nothing
			host.PidMode = container.PidMode("container:" + in.SandboxID)
		}
	case runtimeapi.NamespaceMode_NODE:
		host.PidMode = "host"
	case runtimeapi.NamespaceMode_TARGET:
		host.PidMode = container.PidMode("container:" + in.TargetID)
	case runtimeapi.NamespaceMode_CONTAINER:
	}
	host.CgroupnsMode = container.CgroupnsModePrivate
	if request.SharesCgroupns(in.Spec.Config, in.Spec.SandboxSpec.Config) {
		host.CgroupnsMode = container.CgroupnsModeHost
	}
	if in.Facts.UserNSRemap {
		host.UsernsMode = "host"
	}
}

// envOf lists the environment: the defaults that the image does not set, then the request's.
// The engine puts the image's before it.
func envOf(in ContainerInput) []string {
	set := map[string]bool{}
	for _, entry := range in.Spec.ImageConfig.Env {
		name, _, _ := strings.Cut(entry, "=")
		set[name] = true
	}
	var env []string
	add := func(entry string) {
		name, _, _ := strings.Cut(entry, "=")
		set[name] = true
		env = append(env, entry)
	}
	for _, entry := range in.Defaults.Env {
		if name, _, _ := strings.Cut(entry, "="); !set[name] {
			add(entry)
		}
	}
	for _, kv := range in.Spec.Config.GetEnvs() {
		add(kv.GetKey() + "=" + string(kv.GetValue()))
	}
	n := ocispec.GOMAXPROCS(in.Spec.Config, in.Spec.SandboxSpec.Config, in.Defaults)
	if n > 0 && !set["GOMAXPROCS"] {
		add("GOMAXPROCS=" + strconv.Itoa(n))
	}
	return env
}

// userOf is the user in the form of the engine, "user:group".
func userOf(user ocispec.User) string {
	return strconv.FormatUint(uint64(user.UID), 10) + ":" + strconv.FormatUint(uint64(user.GID), 10)
}

// groupsOf are the groups besides the user's own.
func groupsOf(user ocispec.User) []string {
	var groups []string
	for _, gid := range user.Groups {
		if gid != user.GID {
			groups = append(groups, strconv.FormatUint(uint64(gid), 10))
		}
	}
	return groups
}

func stopSignal(config *runtimeapi.ContainerConfig) string {
	if sig := config.GetStopSignal(); sig != runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		return sysproc.CRISignalName(sig.String())
	}
	return ""
}

// logConfig is the engine's default driver, unless berth could not read a log of it.
func logConfig(facts Facts) container.LogConfig {
	if facts.LoggingDriver == "none" {
		return container.LogConfig{Type: "json-file"}
	}
	return container.LogConfig{}
}

func ulimits(limits []specs.POSIXRlimit) []*container.Ulimit {
	var out []*container.Ulimit
	for _, limit := range limits {
		out = append(out, &container.Ulimit{Name: ulimitName(limit.Type), Soft: clamp(limit.Soft), Hard: clamp(limit.Hard)})
	}
	return out
}
