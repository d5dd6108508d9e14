package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/moby/moby/api/types/container"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/apparmor"
	"github.com/berthrun/berth/internal/engine/docker/labels"
	"github.com/berthrun/berth/internal/engine/docker/oomscore"
	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/internal/engine/faultfield"
	"github.com/berthrun/berth/internal/engine/podfiles"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// CreateSandbox creates and starts the pause container, and pins its network namespace. Each
// object is found again by the sandbox's id alone, so nothing is undone here: RemoveSandbox
// does it.
func (e *Engine) CreateSandbox(ctx context.Context, spec *engine.SandboxSpec) (*engine.Sandbox, error) {
	if spec.Handler != "" {
		return nil, fielderror.Unsupported("runtime_handler", "the Docker engine has no runtime handlers, so that a pod cannot have the handler %q", spec.Handler)
	}
	if e.facts.Load().Podman {
		return nil, errPodman()
	}
	if err := e.checkDemands(ctx, spec.Config); err != nil {
		return nil, err
	}
	e.notices().Annotations("sandbox", spec.ID, spec.Config.GetAnnotations())
	paths := e.sandboxPaths(spec.ID)
	if err := os.Mkdir(paths.dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the sandbox's directory: %w", err)
	}
	parent, err := e.podCgroups.MakeParent(ctx, spec.ID, spec.Config.GetLinux().GetCgroupParent(), paths.ownCgroup)
	if err != nil {
		return nil, err
	}
	if err := e.limitOwnCgroup(ctx, spec, parent); err != nil {
		return nil, err
	}
	running, err := e.startPause(ctx, spec, parent)
	if err != nil {
		return nil, err
	}
	if err := writeResolvConf(running.ResolvConfPath, spec.Config.GetDnsConfig()); err != nil {
		return nil, err
	}
	obj, _ := e.objects.cached(spec.ID)
	sb := &engine.Sandbox{CgroupParent: parent, Pid: running.State.Pid}
	if !request.HostNetwork(spec.Config) {
		if err := e.pinNetNS(obj, paths.netns); err != nil {
			return nil, err
		}
		if err := sysns.InNetNS(paths.netns, func() error { return prepareNetNS(spec.Config) }); err != nil {
			return nil, fmt.Errorf("cannot prepare the sandbox's network namespace: %w", err)
		}
		sb.NetNS = paths.netns
	}
	if groups, err := e.podCgroups.Paths(parent); err == nil {
		e.meter.Watch(spec.ID, groups)
	}
	sb.Backend, err = engine.EncodeBackend(pauseContainer{EngineID: running.ID, SharesPIDs: sharesPIDs(spec.Config)})
	return sb, err
}

func sharesPIDs(config *runtimeapi.PodSandboxConfig) bool {
	return request.SandboxSecurity(config).GetNamespaceOptions().GetPid() == runtimeapi.NamespaceMode_POD
}

// checkDemands refuses profiles that this host cannot enforce: the sandbox fails then, not
// its first container.
func (e *Engine) checkDemands(ctx context.Context, config *runtimeapi.PodSandboxConfig) error {
	if err := e.checkSameDriver(e.facts.Load()); err != nil {
		return err
	}
	if err := podfiles.CheckHostname(config); err != nil {
		return err
	}
	if _, err := e.appArmorProfile(ctx, request.SandboxAppArmorOf(config)); err != nil {
		return err
	}
	return e.seccomp.CheckSandbox(ctx, config, &e.rules().Seccomp)
}

// startPause creates and starts a sandbox's pause container.
func (e *Engine) startPause(ctx context.Context, spec *engine.SandboxSpec, parent string) (*container.InspectResponse, error) {
	defer e.objects.create(spec.ID)()
	raised := e.scores.Fit(ctx, oomscore.Pause, translate.PauseOOMScore)
	running, err := e.startPauseWith(ctx, spec, parent, raised)
	var failed *pauseStartError
	switch {
	case raised == nil && err == nil:
		e.scores.Confirm()
	case raised == nil && errors.As(err, &failed) && failed.isOfRuntime(ctx) && !e.scores.Confirmed():
		running, err = e.startPauseRaised(ctx, spec, parent, err)
	}
	if err != nil {
		return nil, err
	}
	if running.State.Pid == 0 {
		return nil, fmt.Errorf("the pause container %s ended at once with code %d %s: %w",
			running.ID, running.State.ExitCode, running.State.Error, errs.State)
	}
	e.objects.started(spec.ID, running)
	return running, nil
}

// startPauseRaised repeats a failed start of a pause container with an oom_score_adj that every engine
// can set. An engine does not say in its error that its OCI runtime could not set a score.
func (e *Engine) startPauseRaised(ctx context.Context, spec *engine.SandboxSpec, parent string, failed error) (*container.InspectResponse, error) {
	raised := e.scores.Sure(ctx)
	if obj, known := e.objects.cached(spec.ID); known {
		e.objects.remove(spec.ID) // its removal is not an exit
		if err := e.remove(ctx, obj.engineID); err != nil {
			return nil, errors.Join(failed, err)
		}
		e.objects.forget(spec.ID)
	}
	running, err := e.startPauseWith(ctx, spec, parent, &raised)
	if err != nil {
		return nil, failed
	}
	e.scores.Learn(oomscore.Pause, translate.PauseOOMScore, raised)
	return running, nil
}

// pauseStartError is the error of a pause container that was created and did not start.
type pauseStartError struct{ err error }

func (e *pauseStartError) Error() string {
	return fmt.Sprintf("cannot start the pause container: %v", e.err)
}

func (e *pauseStartError) Unwrap() error { return e.err }

// isOfRuntime reports whether the engine has answered that it could not start the container.
func (e *pauseStartError) isOfRuntime(ctx context.Context) bool {
	for _, other := range []error{errs.Unavailable, errs.Deadline, errs.NotFound, errs.Exhausted} {
		if errors.Is(e.err, other) {
			return false
		}
	}
	return ctx.Err() == nil
}

// startPauseWith creates and starts a pause container, with a raised oom_score_adj if raised is not nil.
func (e *Engine) startPauseWith(ctx context.Context, spec *engine.SandboxSpec, parent string, raised *int) (*container.InspectResponse, error) {
	engineID, err := e.createPause(ctx, spec, parent, raised)
	if errors.Is(err, errs.NotFound) { // somebody has removed the image meanwhile
		engineID, err = e.createPause(ctx, spec, parent, raised)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot create the pause container: %w", err)
	}
	obj := object{engineID: engineID, sandbox: true, fate: &fate{}}
	e.objects.put(spec.ID, obj)
	running, err := e.startOnce(ctx, spec.ID, obj)
	if err != nil {
		return nil, &pauseStartError{err}
	}
	return running, nil
}

// createPause returns the Docker Engine's id of a new pause container.
func (e *Engine) createPause(ctx context.Context, spec *engine.SandboxSpec, parent string, raised *int) (engineID string, err error) {
	image, err := e.pause.Ensure(ctx)
	if err != nil {
		return "", err
	}
	filter, err := e.seccomp.Default(nil)
	if err != nil {
		return "", err
	}
	hostname, err := podfiles.Hostname(spec.Config)
	if err != nil {
		return "", err
	}
	options, err := translate.Sandbox(translate.SandboxInput{
		Hostname: hostname,
		Spec:     spec, Name: labels.SandboxName(spec.Config), Image: image,
		Labels: labels.OfSandbox(spec, e.cfg.Instance), CgroupParent: parent,
		Seccomp: filter, Sysctls: e.rules().Sysctls, RaisedOOMScore: raised, Facts: *e.facts.Load(),
	})
	if err != nil {
		return "", err
	}
	return e.createContainer(ctx, options)
}

// pinNetNS keeps the network namespace of a pause container reachable at path. Kind State if the
// container has ended meanwhile: its pid may be that of another process then, and its namespace that
// of the host.
func (e *Engine) pinNetNS(pause object, path string) error {
	if pause.pid == 0 {
		return fmt.Errorf("cannot find the network namespace of the pause container %s without a process: %w", pause.engineID, errs.State)
	}
	err := sysns.Pin(fmt.Sprintf("/proc/%d/ns/net", pause.pid), path)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the process %d of the pause container %s has ended: %w", pause.pid, pause.engineID, errs.State)
	}
	if err != nil {
		return err
	}
	if err := e.checkPin(pause, path); err != nil {
		return errors.Join(err, sysns.RemoveNetNS(path))
	}
	return nil
}

// checkPin refuses a pin of the host's network namespace, and one of a process that is not the pause
// container's any more.
func (e *Engine) checkPin(pause object, path string) error {
	host, err := os.Stat("/proc/self/ns/net") // berth runs in it
	if err != nil {
		return fmt.Errorf("cannot find the host's network namespace: %w", err)
	}
	pinned, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("cannot read the pin of a network namespace: %w", err)
	}
	if os.SameFile(host, pinned) {
		return fmt.Errorf("the pause container %s is in the host's network namespace: %w", pause.engineID, errs.State)
	}
	if _, err := e.objects.tree.OfContainer(pause.pid, pause.engineID); err != nil {
		return fmt.Errorf("the process %d is not that of the pause container %s any more (%w): %w", pause.pid, pause.engineID, err, errs.State)
	}
	return nil
}

// writeResolvConf replaces the content of the file that the Docker Engine mounts as resolv.conf
// into all containers of the pod. It keeps the inode, which the pause container has mounted.
func writeResolvConf(file string, dns *runtimeapi.DNSConfig) error {
	if dns == nil {
		return nil
	}
	content, err := podfiles.ResolvConf(dns)
	if err != nil {
		return err
	}
	if !filepath.IsAbs(file) {
		return fmt.Errorf("the Docker engine reports no resolv.conf of the pause container, but %q", file)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		return fmt.Errorf("cannot write the sandbox's resolv.conf: %w", err)
	}
	return nil
}

// StartSandbox sets the sysctls of the interfaces that the attached network has brought.
func (e *Engine) StartSandbox(_ context.Context, spec *engine.SandboxSpec, sb *engine.Sandbox) (*engine.Sandbox, error) {
	if sb.NetNS == "" {
		return sb, nil
	}
	sysctls, err := ocispec.NetSysctls(spec.Config, e.rules().Sysctls)
	if err != nil {
		return nil, fmt.Errorf("cannot start sandbox %s: %w", spec.ID, err)
	}
	if err := sysns.InNetNS(sb.NetNS, func() error { return sysns.WriteSysctls(sysctls) }); err != nil {
		return nil, faultfield.Sysctl(spec.Config, err)
	}
	return sb, nil
}

// prepareNetNS undoes in the calling thread's network namespace what engines do to one without a
// network of theirs: they turn IPv6 off, and the pause container's read-only /sys would make that of
// privileged containers read-only. It brings the loopback up, as an Attachment has it.
func prepareNetNS(config *runtimeapi.PodSandboxConfig) error {
	if err := sysns.LoopbackUp(); err != nil {
		return fmt.Errorf("cannot bring up the loopback: %w", err)
	}
	if err := sysns.WriteSysctls(ipv6On()); err != nil {
		return err
	}
	if request.SandboxSecurity(config).GetPrivileged() {
		return sysns.WritableSysfs()
	}
	return nil
}

// ipv6On are the sysctls of a new network namespace, nil on a host without IPv6.
func ipv6On() map[string]string {
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		return nil
	}
	return map[string]string{"net/ipv6/conf/all/disable_ipv6": "0", "net/ipv6/conf/default/disable_ipv6": "0"}
}

// appArmorProfile finds a profile, with the operator's in the place of the default.
func (e *Engine) appArmorProfile(ctx context.Context, requested request.AppArmorProfile) (string, error) {
	host := e.apparmor
	if e.rules().AppArmorOff {
		host = apparmor.Off()
	}
	return host.ProfileWith(ctx, requested, e.rules().AppArmorProfile)
}
