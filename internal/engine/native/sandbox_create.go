package native

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/sys/sysmount"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// shmSize is that of a pod's /dev/shm, as the kubelet's users know it.
const shmSize = 64 << 20

// CreateSandbox makes the directories, the cgroup's parent, the namespaces, the
// files and, where containers share a PID namespace, its init. Each is found again
// by the sandbox's id alone, so nothing is undone here: RemoveSandbox does it.
func (e *Engine) CreateSandbox(ctx context.Context, spec *engine.SandboxSpec) (*engine.Sandbox, error) {
	if spec.Handler != "" {
		return nil, fmt.Errorf("runtime_handler: no runtime for %q is configured: %w", spec.Handler, errs.Invalid)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := e.checkDemands(ctx, spec.Config); err != nil {
		return nil, err
	}
	e.warnIgnored("sandbox", spec.ID, spec.Config.GetAnnotations())
	paths := e.sandboxPaths(spec.ID)
	if err := makeSandboxDirs(paths, spec.Dir); err != nil {
		return nil, err
	}
	parent, err := e.makeCgroupParent(ctx, spec, paths)
	if err != nil {
		return nil, err
	}
	e.warmer.Warm() // its containers will follow
	sb := &sandbox{Sandbox: engine.Sandbox{CgroupParent: parent}}
	if err := e.limitOwnCgroup(ctx, spec, &sb.Sandbox); err != nil {
		return nil, err
	}
	if err := e.labelSandbox(spec, paths, sb); err != nil {
		return nil, err
	}
	hostname, err := hostnameOf(spec.Config)
	if err != nil {
		return nil, err
	}
	if err := e.makeNamespaces(spec.Config, paths, hostname, sb); err != nil {
		return nil, fmt.Errorf("cannot make sandbox %s: %w", spec.ID, refusedSysctl(spec.Config, err))
	}
	files := sandboxFiles{
		dir: spec.Dir, hostname: hostname, owner: ownerOf(spec.Config),
		hostNetwork: hostNetwork(spec.Config), dns: spec.Config.GetDnsConfig(),
	}
	if err := files.write(nil); err != nil {
		return nil, err
	}
	if err := e.labelFiles(spec.Dir, paths, sb.MountLabel); err != nil {
		return nil, err
	}
	if namespaceOptions(spec.Config).GetPid() == runtimeapi.NamespaceMode_POD {
		if err := e.startPodInit(ctx, spec, paths, sb); err != nil {
			return nil, err
		}
	}
	groups, err := e.podCgroup(parent)
	if err != nil {
		return nil, err
	}
	e.meter.Watch(spec.ID, groups)
	return sb.record()
}

// checkDemands refuses what this host cannot enforce. A sandbox without a process has
// nothing to confine, but its pod counts on it.
func (e *Engine) checkDemands(ctx context.Context, config *runtimeapi.PodSandboxConfig) error {
	if err := checkHostname(config); err != nil {
		return err
	}
	profile, err := ocispec.SandboxAppArmorOf(config)
	if err != nil {
		return err
	}
	if _, err = e.appArmorProfile(ctx, profile); err != nil {
		return err
	}
	filter, err := ocispec.SandboxSeccompOf(config)
	if err != nil {
		return err
	}
	_, err = e.filter(ctx, e.chosen(filter), nil)
	return err
}

// StartSandbox sets what only an attached network allows: the sysctls of its
// interfaces, and the pod's addresses in its hosts file.
func (e *Engine) StartSandbox(_ context.Context, spec *engine.SandboxSpec, sb *engine.Sandbox) error {
	if sb.NetNS == "" {
		return nil
	}
	sysctls, err := netSysctls(spec.Config, e.rules().Sysctls)
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
		return fmt.Errorf("cannot start sandbox %s: %w", spec.ID, refusedSysctl(spec.Config, err))
	}
	hostname, err := hostnameOf(spec.Config)
	if err != nil {
		return err
	}
	return sandboxFiles{dir: spec.Dir, hostname: hostname, owner: ownerOf(spec.Config)}.writeHosts(addresses)
}

func makeSandboxDirs(paths sandboxPaths, filesDir string) error {
	if err := os.Mkdir(paths.dir, 0o711); err != nil {
		return fmt.Errorf("cannot make the sandbox's directory: %w", err)
	}
	if err := os.Symlink(filesDir, paths.filesDir); err != nil {
		return fmt.Errorf("cannot write down the sandbox's directory: %w", err)
	}
	if err := os.MkdirAll(filesDir, 0o711); err != nil {
		return fmt.Errorf("cannot make the sandbox's directory: %w", err)
	}
	return nil
}

// makeNamespaces makes what the sandbox does not share with the host. A pod in the
// host's network has the host's name as well.
func (e *Engine) makeNamespaces(config *runtimeapi.PodSandboxConfig, paths sandboxPaths, hostname string, sb *sandbox) error {
	user, err := e.userNamespace(config, paths.user)
	if err != nil {
		return err
	}
	namespaces := sysns.PodNamespaces{User: user, Hostname: hostname}
	if user != nil {
		sb.UserNS = paths.user
	}
	if !hostNetwork(config) {
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
		_, namespaces.Sysctls = ocispec.SplitSysctls(withDefaults(config, e.rules().Sysctls))
		if err := os.Mkdir(paths.shm, 0o711); err != nil {
			return fmt.Errorf("cannot make the sandbox's shm: %w", err)
		}
		if err := sysmount.MountTmpfs(paths.shm, shmSize, ownerOf(config)); err != nil {
			return err
		}
	}
	return namespaces.Make()
}

// pingGroups is the sysctl with the groups that may ping.
const pingGroups = "net/ipv4/ping_group_range"

// withDefaults are the sysctls that the request asks for, and those that it does not
// speak of. A name has two spellings.
func withDefaults(config *runtimeapi.PodSandboxConfig, defaults map[string]string) map[string]string {
	all := map[string]string{}
	for _, sysctls := range []map[string]string{defaults, config.GetLinux().GetSysctls()} {
		for name, value := range sysctls {
			all[ocispec.SysctlFile(name)] = value
		}
	}
	return all
}

// netSysctls are those asked for, the defaults, and those that let a pod without
// capabilities serve low ports and ping, as other runtimes do.
func netSysctls(config *runtimeapi.PodSandboxConfig, defaults map[string]string) (map[string]string, error) {
	sysctls, _ := ocispec.SplitSysctls(withDefaults(config, defaults))
	user := ocispec.UserNamespaceOf(config)
	if groups, asked := sysctls[pingGroups]; asked {
		var err error
		if sysctls[pingGroups], err = user.HostGroups(groups); err != nil {
			return nil, fmt.Errorf("config.linux.sysctls[%q]: %w", "net.ipv4.ping_group_range", err)
		}
	} else {
		sysctls[pingGroups] = user.AllGroups()
	}
	if _, asked := sysctls["net/ipv4/ip_unprivileged_port_start"]; !asked {
		sysctls["net/ipv4/ip_unprivileged_port_start"] = "0"
	}
	return sysctls, nil
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

func hostNetwork(config *runtimeapi.PodSandboxConfig) bool {
	return namespaceOptions(config).GetNetwork() == runtimeapi.NamespaceMode_NODE
}

// checkHostname refuses a name of its own for a pod that has the host's. A kubelet sends
// none then.
func checkHostname(config *runtimeapi.PodSandboxConfig) error {
	asked := config.GetHostname()
	if asked == "" || !hostNetwork(config) {
		return nil
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("cannot read the host's name: %w", err)
	}
	if asked != host {
		return fmt.Errorf("config.hostname: %q cannot be the name of a pod in the host's network, which has the host's (%s); leave it empty: %w", asked, host, errs.Invalid)
	}
	return nil
}

// hostnameOf is the name that the pod's processes see.
func hostnameOf(config *runtimeapi.PodSandboxConfig) (string, error) {
	if name := config.GetHostname(); name != "" && !hostNetwork(config) {
		return name, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("cannot read the host's name: %w", err)
	}
	return name, nil
}
