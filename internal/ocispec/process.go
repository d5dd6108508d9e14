package ocispec

import (
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/berthrun/berth/internal/ocispec/request"
)

const (
	defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	defaultTerm = "TERM=xterm"
)

// restoredArg is in the place of the program of a container that continues a checkpoint and names none: nothing runs it, but
// an OCI runtime refuses a spec without a program.
const restoredArg = "restored"

func processOf(in Input) (*specs.Process, error) {
	args, err := Args(in.Config, in.Image)
	if err != nil && !in.Restored {
		return nil, err
	}
	if err != nil {
		args = []string{restoredArg}
	}
	caps, err := Capabilities(in.Config, in.Host, in.Defaults.Capabilities)
	if err != nil {
		return nil, err
	}
	inheritable := caps.Ambient
	if in.Defaults.Inheritable {
		inheritable = caps.Permitted
	}
	security := request.Security(in.Config)
	oomScoreAdj := int(in.Config.GetLinux().GetResources().GetOomScoreAdj())
	return &specs.Process{
		Terminal: in.Config.GetTty(),
		User: specs.User{
			UID: in.User.UID, GID: in.User.GID, AdditionalGids: in.User.Groups,
		},
		Args: args,
		Env:  envOf(in),
		Cwd:  WorkingDir(in.Config, in.Image),
		Capabilities: &specs.LinuxCapabilities{
			Bounding: caps.Permitted, Effective: caps.Permitted, Permitted: caps.Permitted,
			Inheritable: inheritable, Ambient: caps.Ambient,
		},
		ApparmorProfile: in.AppArmor,
		SelinuxLabel:    in.ProcessLabel,
		NoNewPrivileges: security.GetNoNewPrivs(),
		Rlimits:         in.Defaults.Rlimits,
		// Always said: the supervisor's own score must not be inherited.
		OOMScoreAdj: &oomScoreAdj,
	}, nil
}

// Args merges the request's command and args with the image's entrypoint and
// cmd: a command hides both of the image's, args alone hide only its cmd. Kind Invalid if
// there is no program.
func Args(config *runtimeapi.ContainerConfig, image imagespec.ImageConfig) ([]string, error) {
	command, args := config.GetCommand(), config.GetArgs()
	if len(command) == 0 {
		command = image.Entrypoint
		if len(args) == 0 {
			args = image.Cmd
		}
	}
	all := slices.Concat(command, args)
	if len(all) == 0 || all[0] == "" {
		return nil, fielderror.Invalid("config.command", "no command specified, neither in the request nor in the image")
	}
	return all, nil
}

// envOf lists the environment: ours, then the defaults, then the image's, then the
// request's. The last value of a name wins and stands where the name stood first.
func envOf(in Input) []string {
	env := newEnvironment()
	env.add(defaultPath)
	if in.Config.GetTty() {
		env.add(defaultTerm)
	}
	env.add("HOSTNAME=" + in.Hostname)
	for _, entry := range in.Defaults.Env {
		env.add(entry)
	}
	for _, entry := range in.Image.Env {
		// What an image cannot mean is dropped, as docker does: it must not
		// make the image unusable.
		if i := strings.IndexByte(entry, '='); i > 0 && !strings.ContainsRune(entry, 0) {
			env.add(entry)
		}
	}
	for _, kv := range in.Config.GetEnvs() {
		env.add(kv.GetKey() + "=" + string(kv.GetValue()))
	}
	// Without HOME the runtime would read the image's passwd file, unbounded.
	if !env.has("HOME") {
		home := in.User.Home
		if home == "" {
			home = "/"
		}
		env.add("HOME=" + home)
	}
	if n := GOMAXPROCS(in.Config, in.SandboxConfig, in.Defaults); n > 0 && !env.has("GOMAXPROCS") {
		env.add("GOMAXPROCS=" + strconv.Itoa(n))
	}
	return env.entries
}

// sharesOfCPU is what a kubelet makes of a request for one CPU.
const sharesOfCPU = 1024

// GOMAXPROCS is how many processors a Go program should use that finds no limit: twice
// what its container asks for, and at least what the defaults say; 0 says nothing. With a
// limit, programs find it themselves, and guaranteed CPUs are the container's own.
func GOMAXPROCS(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig, defaults Defaults) int {
	parent, resources := sandbox.GetLinux().GetCgroupParent(), config.GetLinux().GetResources()
	guaranteed := !strings.Contains(parent, "burstable") && !strings.Contains(parent, "besteffort")
	if defaults.MinGOMAXPROCS == 0 || guaranteed || resources.GetCpuQuota() > 0 {
		return 0
	}
	asked := (2*resources.GetCpuShares() + sharesOfCPU - 1) / sharesOfCPU
	return max(int(asked), defaults.MinGOMAXPROCS)
}

type environment struct {
	entries []string
	at      map[string]int
}

func newEnvironment() *environment { return &environment{at: map[string]int{}} }

func (e *environment) has(name string) bool {
	_, ok := e.at[name]
	return ok
}

func (e *environment) add(entry string) {
	name, _, _ := strings.Cut(entry, "=")
	if i, ok := e.at[name]; ok {
		e.entries[i] = entry
		return
	}
	e.at[name] = len(e.entries)
	e.entries = append(e.entries, entry)
}

// WorkingDir is the directory in which the program starts: the request's, else the image's.
func WorkingDir(config *runtimeapi.ContainerConfig, image imagespec.ImageConfig) string {
	if dir := config.GetWorkingDir(); dir != "" {
		return path.Clean(dir)
	}
	// An image may name it relative to its root.
	return path.Join("/", image.WorkingDir)
}

// ExecProcess turns a container's process into one that runs command beside it.
func ExecProcess(container *specs.Process, command []string, tty bool) *specs.Process {
	process := *container
	process.Args = command
	process.Terminal = tty
	process.ConsoleSize = nil
	process.Env = slices.Clone(container.Env)
	hasTerm := slices.ContainsFunc(process.Env, func(e string) bool { return strings.HasPrefix(e, "TERM=") })
	if tty && !hasTerm {
		process.Env = append(process.Env, defaultTerm)
	}
	return &process
}

func annotationsOf(in Input) map[string]string {
	pod := in.SandboxConfig.GetMetadata()
	annotations := map[string]string{}
	maps.Copy(annotations, in.Annotations)
	maps.DeleteFunc(annotations, func(key, _ string) bool { return request.ControlsRuntime(key) })
	maps.Copy(annotations, map[string]string{
		"io.kubernetes.cri.container-type":        "container",
		"io.kubernetes.cri.sandbox-id":            in.SandboxID,
		"io.kubernetes.cri.sandbox-name":          pod.GetName(),
		"io.kubernetes.cri.sandbox-namespace":     pod.GetNamespace(),
		"io.kubernetes.cri.sandbox-uid":           pod.GetUid(),
		"io.kubernetes.cri.sandbox-log-directory": in.SandboxConfig.GetLogDirectory(),
		"io.kubernetes.cri.container-name":        in.Config.GetMetadata().GetName(),
		"io.kubernetes.cri.image-name":            imageName(in.Config),
	})
	return annotations
}

// imageName prefers what the user wrote: the kubelet replaces the image by its id.
func imageName(config *runtimeapi.ContainerConfig) string {
	if name := config.GetImage().GetUserSpecifiedImage(); name != "" {
		return name
	}
	return config.GetImage().GetImage()
}

func fileMode(bits uint32) fs.FileMode { return fs.FileMode(bits) & fs.ModePerm }
