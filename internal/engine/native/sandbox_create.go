package native

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/apparmor"
	"github.com/berthrun/berth/internal/engine/faultfield"
	"github.com/berthrun/berth/internal/engine/native/handler"
	"github.com/berthrun/berth/internal/engine/native/podinit"
	"github.com/berthrun/berth/internal/engine/native/userns"
	"github.com/berthrun/berth/internal/engine/podcgroup"
	"github.com/berthrun/berth/internal/engine/podfiles"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/sys/sysmount"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// shmSize is that of a pod's /dev/shm, as the kubelet's users know it.
const shmSize = 64 << 20

// CreateSandbox makes the directories, the cgroup's parent, the namespaces, the
// files and, where containers share a PID namespace, its init. Each is found again
// by the sandbox's id alone, so nothing is undone here: RemoveSandbox does it.
func (e *Engine) CreateSandbox(ctx context.Context, spec *engine.SandboxSpec) (*engine.Sandbox, error) {
	runs, err := e.handlerOf(ctx, spec)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := e.checkDemands(ctx, spec.Config, runs); err != nil {
		return nil, err
	}
	e.notices().Annotations("sandbox", spec.ID, spec.Config.GetAnnotations())
	paths := e.sandboxPaths(spec.ID)
	if err := makeSandboxDirs(paths, spec.Dir); err != nil {
		return nil, err
	}
	parent, err := e.podCgroups.MakeParent(ctx, spec.ID, spec.Config.GetLinux().GetCgroupParent(), paths.ownCgroup)
	if err != nil {
		return nil, err
	}
	e.warm() // for the containers that follow
	sb := &sandbox{Sandbox: engine.Sandbox{CgroupParent: parent}, pinned: pinned{Handler: runs}}
	if err := e.limitOwnCgroup(ctx, spec, &sb.Sandbox); err != nil {
		return nil, err
	}
	if err := e.labelSandbox(spec, paths, sb); err != nil {
		return nil, err
	}
	hostname, err := podfiles.Hostname(spec.Config)
	if err != nil {
		return nil, err
	}
	if err := e.makeNamespaces(spec.Config, paths, hostname, sb); err != nil {
		return nil, fmt.Errorf("cannot make sandbox %s: %w", spec.ID, faultfield.Sysctl(spec.Config, err))
	}
	files := podfiles.Files{
		Dir: spec.Dir, Hostname: hostname, Owner: userns.Owner(spec.Config),
		HostNetwork: request.HostNetwork(spec.Config), DNS: spec.Config.GetDnsConfig(),
	}
	if err := files.Write(nil); err != nil {
		return nil, err
	}
	if err := e.labelFiles(spec.Dir, paths, sb.MountLabel); err != nil {
		return nil, err
	}
	if namespaceOptions(spec.Config).GetPid() == runtimeapi.NamespaceMode_POD && !runs.MakesSandbox() {
		if err := e.startPodInit(ctx, spec, paths, sb); err != nil {
			return nil, err
		}
	}
	groups, err := e.podCgroups.Paths(parent)
	if err != nil {
		return nil, err
	}
	e.meter.Watch(spec.ID, groups)
	return sb.record()
}

// checkDemands refuses profiles and names that this host cannot enforce: the sandbox fails
// then, not its first container.
func (e *Engine) checkDemands(ctx context.Context, config *runtimeapi.PodSandboxConfig, runs *handler.Handler) error {
	if err := podfiles.CheckHostname(config); err != nil {
		return err
	}
	if _, err := e.appArmorProfile(ctx, request.SandboxAppArmorOf(config)); err != nil {
		return err
	}
	return e.seccomp.CheckSandbox(ctx, config, e.seccompOf(runs))
}

// StartSandbox sets what needs the attached network: the sysctls of its interfaces, and the
// pod's addresses in its hosts file. Then it starts the root container of a pod whose runtime is the
// sandbox, or has the shim start the sandbox: gVisor takes the addresses from the interfaces.
func (e *Engine) StartSandbox(ctx context.Context, spec *engine.SandboxSpec, sb *engine.Sandbox) (*engine.Sandbox, error) {
	if err := e.setUpNetwork(spec, sb); err != nil {
		return nil, err
	}
	read, err := sandboxOf(sb)
	if err != nil || !read.Handler.MakesSandbox() {
		return sb, err
	}
	start := e.startRootContainer
	if read.Handler.SandboxAPI {
		start = e.startShimSandbox
	}
	if err := start(ctx, spec, read); err != nil {
		return nil, err
	}
	return read.record()
}

func (e *Engine) setUpNetwork(spec *engine.SandboxSpec, sb *engine.Sandbox) error {
	if sb.NetNS == "" {
		return nil
	}
	sysctls, err := ocispec.NetSysctls(spec.Config, e.rules().Sysctls)
	if err != nil {
		return fmt.Errorf("cannot start sandbox %s: %w", spec.ID, err)
	}
	var addresses []netip.Addr
	err = sysns.InNetNS(sb.NetNS, func() error {
		if err := sysns.WriteSysctls(sysctls); err != nil {
			return err
		}
		var err error
		addresses, err = interfaceAddresses("eth0")
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot start sandbox %s: %w", spec.ID, faultfield.Sysctl(spec.Config, err))
	}
	hostname, err := podfiles.Hostname(spec.Config)
	if err != nil {
		return err
	}
	return podfiles.Files{Dir: spec.Dir, Hostname: hostname, Owner: userns.Owner(spec.Config)}.WriteHosts(addresses)
}

func makeSandboxDirs(paths sandboxPaths, filesDir string) error {
	if err := os.Mkdir(paths.dir, 0o711); err != nil {
		return fmt.Errorf("cannot make the sandbox's directory: %w", err)
	}
	if err := os.Symlink(filesDir, paths.filesDir); err != nil {
		return fmt.Errorf("cannot record the sandbox's directory: %w", err)
	}
	if err := os.MkdirAll(filesDir, 0o711); err != nil {
		return fmt.Errorf("cannot make the sandbox's directory: %w", err)
	}
	return nil
}

// makeNamespaces makes the namespaces that the sandbox does not share with the host. A pod in
// the host's network has the host's name as well.
func (e *Engine) makeNamespaces(config *runtimeapi.PodSandboxConfig, paths sandboxPaths, hostname string, sb *sandbox) error {
	user, err := e.userns.Namespace(config, paths.user)
	if err != nil {
		return err
	}
	namespaces := sysns.PodNamespaces{User: user, Hostname: hostname}
	if user != nil {
		sb.UserNS = paths.user
	}
	if !request.HostNetwork(config) {
		if user != nil {
			namespaces.Net = paths.netns // those of the pool are the host's
		} else if err := e.netns.Pin(paths.netns); err != nil {
			return err
		}
		sb.NetNS, sb.UTSNS = paths.netns, paths.uts
		namespaces.UTS = paths.uts
	}
	if namespaceOptions(config).GetIpc() == runtimeapi.NamespaceMode_POD {
		sb.IPCNS, namespaces.IPC = paths.ipc, paths.ipc
		namespaces.Sysctls = ocispec.IPCSysctls(config, e.rules().Sysctls)
		if err := os.Mkdir(paths.shm, 0o711); err != nil {
			return fmt.Errorf("cannot make the sandbox's shm: %w", err)
		}
		if err := sysmount.MountTmpfs(paths.shm, shmSize, userns.Owner(config)); err != nil {
			return err
		}
	}
	return namespaces.Make()
}

// interfaceAddresses lists the addresses of an interface of this thread's network,
// none when there is no such interface. Link-local ones are left out.
func interfaceAddresses(name string) ([]netip.Addr, error) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		var opErr *net.OpError
		if errors.As(err, &opErr) {
			return nil, nil
		}
		return nil, fmt.Errorf("cannot look at the sandbox's %s: %w", name, err)
	}
	list, err := link.Addrs()
	if err != nil {
		return nil, fmt.Errorf("cannot list the addresses of the sandbox's %s: %w", name, err)
	}
	var addresses []netip.Addr
	for _, a := range list {
		prefix, err := netip.ParsePrefix(a.String())
		if err == nil && !prefix.Addr().IsLinkLocalUnicast() {
			addresses = append(addresses, prefix.Addr())
		}
	}
	return addresses, nil
}

func namespaceOptions(config *runtimeapi.PodSandboxConfig) *runtimeapi.NamespaceOption {
	return config.GetLinux().GetSecurityContext().GetNamespaceOptions()
}

// appArmorProfile finds a profile, with the operator's in the place of the default.
func (e *Engine) appArmorProfile(ctx context.Context, requested request.AppArmorProfile) (string, error) {
	return e.appArmorHost().ProfileWith(ctx, requested, e.rules().AppArmorProfile)
}

func (e *Engine) appArmorHost() *apparmor.Host {
	if e.rules().AppArmorOff {
		return apparmor.Off()
	}
	return e.apparmor
}

// startPodInit starts the init of a PID namespace that the sandbox's containers
// share, as a container with the sandbox's own id, and pins the namespace.
func (e *Engine) startPodInit(ctx context.Context, spec *engine.SandboxSpec, paths sandboxPaths, sb *sandbox) error {
	if e.cfg.PodInit == "" {
		return fmt.Errorf("config.linux.security_context.namespace_options.pid: POD needs an init, and none is configured: %w", errs.Unsupported)
	}
	in, err := e.podInitOf(ctx, spec, sb, e.podInitRoot)
	if err != nil {
		return err
	}
	if sb.Pid, err = e.podInits().Start(ctx, spec.ID, in.Spec()); err != nil {
		return err
	}
	sb.PodInit = podInitSealed
	if err := sysns.Pin(fmt.Sprintf("/proc/%d/ns/pid", sb.Pid), paths.pid); err != nil {
		return err
	}
	sb.PIDNS = paths.pid
	return nil
}

// startRootContainer starts the first container of a pod whose runtime is the sandbox. It is a container with the
// sandbox's own id, as a pod's init is. It has no image, and no client sees it.
func (e *Engine) startRootContainer(ctx context.Context, spec *engine.SandboxSpec, sb *sandbox) error {
	if e.cfg.PodInit == "" {
		return fmt.Errorf("handler %q: its pods need a root container, and no program is configured for it: %w", sb.Handler.Name, errs.Unsupported)
	}
	init, err := e.podInitOf(ctx, spec, sb, e.rootContainer)
	if err != nil {
		return err
	}
	in := ocispec.RootContainer{PodInit: init, Annotations: e.annotationsOfPod(spec.Config, sb.Handler)}
	if in.Hostname, err = podfiles.Hostname(spec.Config); err != nil {
		return err
	}
	if sb.IPCNS != "" {
		in.Shm = e.sandboxPaths(spec.ID).shm
	}
	starter := e.podInits()
	starter.Handler = sb.Handler.Program()
	if sb.Pid, err = starter.Start(ctx, spec.ID, in.Spec()); err != nil {
		return err
	}
	sb.PodInit = podInitSealed
	if namespaceOptions(spec.Config).GetPid() == runtimeapi.NamespaceMode_POD {
		// gVisor knows its own namespace by this path alone. The process lives as long as the pod.
		sb.PIDNS = fmt.Sprintf("/proc/%d/ns/pid", sb.Pid)
	}
	return nil
}

// sandboxConfigType is the type of a PodSandboxConfig, as containerd names it to shims.
const sandboxConfigType = "runtime.v1.PodSandboxConfig"

// startShimSandbox has a shim create and start the sandbox by the sandbox API. The shim gets the configuration of the
// sandbox with the cgroup that the pod has, and with the annotations that a root container would have.
func (e *Engine) startShimSandbox(ctx context.Context, spec *engine.SandboxSpec, sb *sandbox) error {
	in := ocispec.RootContainer{
		PodInit: ocispec.PodInit{
			SandboxID: spec.ID, SandboxConfig: spec.Config,
			// Not the cgroup with the sandbox's id: the shim may make that one, and be in it.
			CgroupsPath: e.podCgroups.ContainerPath(sb.CgroupParent, "shim-"+spec.ID),
		},
		Annotations: e.annotationsOfPod(spec.Config, sb.Handler),
	}
	oci := in.SandboxSpec()
	config := proto.CloneOf(spec.Config)
	config.Annotations = oci.Annotations
	if config.Linux == nil {
		config.Linux = &runtimeapi.LinuxPodSandboxConfig{}
	}
	config.Linux.CgroupParent = sb.CgroupParent
	data, err := proto.Marshal(config)
	if err != nil {
		return fmt.Errorf("cannot encode the sandbox's configuration: %w", err)
	}
	starter := e.podInits()
	starter.Handler = sb.Handler.Program()
	starter.Sandbox = &supervisor.Sandbox{Config: data, ConfigType: sandboxConfigType, NetNS: sb.NetNS}
	if sb.Pid, err = starter.Start(ctx, spec.ID, oci); err != nil {
		return err
	}
	sb.PodInit = podInitSealed
	if namespaceOptions(spec.Config).GetPid() != runtimeapi.NamespaceMode_POD {
		return nil
	}
	sb.PIDNS = fmt.Sprintf("/proc/%d/ns/pid", sb.Pid)
	shared, err := os.Readlink(sb.PIDNS)
	if err != nil {
		return fmt.Errorf("cannot look at the PID namespace of the sandbox: %w", err)
	}
	if host, err := os.Readlink("/proc/self/ns/pid"); err != nil || shared == host {
		return errors.Join(err, fmt.Errorf("config.linux.security_context.namespace_options.pid: POD: process %d, the sandbox of handler %q, "+
			"is in the host's PID namespace, which containers must not share: %w", sb.Pid, sb.Handler.Name, errs.Unsupported))
	}
	return nil
}

// podInitOf is what the spec of a sandbox's own process is computed from.
func (e *Engine) podInitOf(ctx context.Context, spec *engine.SandboxSpec, sb *sandbox, root *podinit.Root) (in ocispec.PodInit, err error) {
	rootfs, err := root.Mount(ctx)
	if err != nil {
		return in, err
	}
	ids, err := podinit.OwnIDs()
	if err != nil {
		return in, err
	}
	// The default filter of a process without capabilities, whatever the sandbox asks for: a
	// profile on the node is written for the pod's programs, and may lack what the init needs.
	filter, err := e.seccomp.Default(nil)
	if err != nil {
		return in, err
	}
	// Berth's own profile: an operator's is written for the pod's programs.
	profile, err := e.appArmorHost().Profile(ctx, request.AppArmorProfile{Default: true})
	if err != nil {
		return in, err
	}
	return ocispec.PodInit{
		SandboxID:     spec.ID,
		SandboxConfig: spec.Config,
		UserNamespace: request.UserNamespaceOf(spec.Config),
		IDs:           ids,
		Rootfs:        rootfs,
		CgroupsPath:   e.podCgroups.ContainerPath(sb.CgroupParent, spec.ID),
		Namespaces:    ocispec.Namespaces{User: sb.UserNS, Net: sb.NetNS, IPC: sb.IPCNS, UTS: sb.UTSNS},
		ProcessLabel:  sb.ProcessLabel,
		MountLabel:    sb.MountLabel,
		AppArmor:      profile,
		Seccomp:       filter,
	}, nil
}

// podInits starts and removes the inits of pods.
func (e *Engine) podInits() podinit.Starter {
	return podinit.Starter{
		Bundles: e.bundles, Supervisor: e.cfg.Supervisor,
		SystemdCgroup: e.cfg.CgroupDriver == podcgroup.Systemd, Seccomp: e.host.Seccomp,
		NoOwnInit: e.rules().NoOwnInit,
	}
}
