package pod

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/pod/job"
	"github.com/berthrun/berth/internal/store"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RunSandbox makes a sandbox READY, or joins the job that does. The job outlives
// the request; a request with the same config joins it or gets its result.
func (s *Service) RunSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string) (id string, err error) {
	if err := s.opts.Engine.CheckSandbox(config); err != nil {
		return "", err
	}
	if _, err := addresses(config); err != nil {
		return "", err
	}
	rec := &SandboxRecord{
		ID: newID(), Boot: s.opts.BootID, State: SandboxCreating, CreatedAt: now(), Handler: handler,
		Config: store.MessageOf(config),
	}
	return s.jobs.Do(ctx, &job.Request{
		Key: rec.name(), ID: rec.ID, Kind: kindRun, Want: rec.request(),
		Run: func(ctx context.Context, j *job.Job) (string, error) { return s.runSandbox(ctx, j, rec) },
	})
}

// runSandbox is the order of steps. READY is the last of them; whatever fails,
// teardown undoes all, and it needs nothing but the record.
func (s *Service) runSandbox(ctx context.Context, j *job.Job, rec *SandboxRecord) (id string, err error) {
	if id, err = s.sandboxOfName(ctx, j, rec); id != "" || err != nil {
		return id, err
	}
	j.Stage("write record", "the state directory")
	if err = s.sandboxes.Create(rec.ID, rec); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = s.abandonSandbox(ctx, j, rec.ID, err)
		}
	}()
	if err = errs.Guard("run of sandbox "+rec.ID, func() error { return s.makeSandbox(ctx, j, rec) }); err != nil {
		return "", err
	}
	return rec.ID, nil
}

// makeSandbox is what follows the record, which the caller undoes.
func (s *Service) makeSandbox(ctx context.Context, j *job.Job, rec *SandboxRecord) error {
	spec := s.sandboxSpec(rec)
	j.Stage("create sandbox", "the engine")
	sb, err := callFor(ctx, s.calls, rec.ID, "create sandbox", func(ctx context.Context) (*engine.Sandbox, error) {
		return s.opts.Engine.CreateSandbox(ctx, spec)
	})
	if err != nil {
		return err
	}
	result, err := s.attach(ctx, j, rec, sb)
	if err != nil {
		return err
	}
	j.Stage("start sandbox", "the engine")
	if _, err = callFor(ctx, s.calls, rec.ID, "start sandbox", func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.opts.Engine.StartSandbox(ctx, spec, sb)
	}); err != nil {
		return err
	}
	j.Stage("publish", "the state directory")
	if ctx.Err() != nil {
		return fmt.Errorf("cannot publish sandbox: %w", context.Cause(ctx))
	}
	if _, err = s.sandboxes.Update(rec.ID, func(r *SandboxRecord) error {
		r.State, r.Engine, r.Network = SandboxReady, sb, result
		return nil
	}); err != nil {
		return err
	}
	s.tombstones.touch(rec.ID)
	s.log.Info("sandbox is ready", "sandbox", rec.ID, "pod", rec.name(), "took", j.Info().Age)
	return nil
}

// sandboxOfName says what to do about an earlier sandbox of the same name:
// return its id when it is what is asked for, refuse, or, when it is one whose
// removal failed so far, remove it now.
//
// One that has containers is refused: whoever asked for it has had its id, so that who
// asks now has not seen it yet, as a kubelet that has just started, and would make the
// containers a second time.
func (s *Service) sandboxOfName(ctx context.Context, j *job.Job, rec *SandboxRecord) (string, error) {
	id, old, taken := s.sandboxes.ByName(rec.name())
	if !taken {
		return "", nil
	}
	differs := job.Difference(old.request(), rec.request())
	switch {
	case old.State == SandboxReady && differs == "":
		if containers := s.containersOf(id); len(containers) > 0 {
			return "", fmt.Errorf("sandbox %q has the name %s, is ready and has containers (%s); use it, remove it or ask for the next attempt: %w",
				id, rec.name(), strings.Join(containers, ", "), errs.Exists)
		}
		return id, nil
	case old.State == SandboxReady:
		return "", fmt.Errorf("sandbox %q has the name %s and another %s: %w", id, rec.name(), differs, errs.Exists)
	case old.State == SandboxCreating || old.State == SandboxRemoving:
		j.Stage("remove what an earlier attempt left", "its teardown")
		if err := s.teardown(ctx, j, id, SandboxRemoving); err != nil {
			return "", fmt.Errorf("cannot remove sandbox %q, which an earlier attempt left under the same name: %w", id, err)
		}
		return "", nil
	default:
		return "", fmt.Errorf("sandbox %q has the name %s and is stopped; remove it or ask for the next attempt: %w", id, rec.name(), errs.Exists)
	}
}

// abandonSandbox tears down what a failed or cancelled job made and returns the
// job's error. What cannot be torn down now shows as NOTREADY and is tried again.
func (s *Service) abandonSandbox(ctx context.Context, j *job.Job, id string, cause error) error {
	if errors.Is(context.Cause(ctx), job.ErrShutdown) {
		return fmt.Errorf("%w: %w", job.ErrShutdown, cause) // the next start finds the record and tears down
	}
	if ctx.Err() != nil && !errors.Is(cause, context.Cause(ctx)) {
		cause = fmt.Errorf("%w: %w", context.Cause(ctx), cause)
	}
	err := s.teardown(ctx, j, id, SandboxRemoving)
	if err == nil {
		return cause
	}
	_, updateErr := s.sandboxes.Update(id, func(r *SandboxRecord) error {
		r.State, r.Message = SandboxRemoving, fmt.Sprintf("it could not be made (%v) and is being removed (%v)", cause, err)
		return nil
	})
	s.retrySandbox(ctx, id)
	return errors.Join(cause, err, errs.IgnoreNotFound(updateErr))
}

// attach connects the sandbox to its network. What it may take is written down
// on disk first, where it outlives a reboot.
func (s *Service) attach(ctx context.Context, j *job.Job, rec *SandboxRecord, sb *engine.Sandbox) (*network.Result, error) {
	if sb.NetNS == "" {
		return nil, nil //nolint:nilnil // the host's network needs no attachment
	}
	att, err := attachment(rec, sb)
	if err != nil {
		return nil, err
	}
	if err := s.attachments.Create(rec.ID, att); err != nil {
		return nil, err
	}
	j.Stage("wait for the network", "its garbage collection")
	if err := s.networkGate.pass(ctx); err != nil {
		return nil, fmt.Errorf("cannot attach sandbox to its network: %w", err)
	}
	j.Stage("attach network", "the network's plugins")
	result, err := callFor(ctx, s.calls, rec.ID, "attach sandbox to its network", func(ctx context.Context) (*network.Result, error) {
		return s.opts.Network.Attach(ctx, att)
	})
	if err != nil {
		// The words that tools and people look for.
		return nil, fmt.Errorf("failed to setup network for sandbox %q: %w", rec.ID, err)
	}
	return result, nil
}

// detach gives back what attach took.
func (s *Service) detach(ctx context.Context, id string) error {
	att, err := s.attachments.Get(id)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	if _, err := callFor(ctx, s.calls, id, "detach sandbox from its network", func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.opts.Network.Detach(ctx, att)
	}); err != nil {
		return err
	}
	return s.attachments.Delete(id)
}

func attachment(rec *SandboxRecord, sb *engine.Sandbox) (*network.Attachment, error) {
	config := rec.Config.Get()
	asked, err := addresses(config)
	if err != nil {
		return nil, err
	}
	att := &network.Attachment{
		Addresses: asked, Privileged: config.GetLinux().GetSecurityContext().GetPrivileged(),
		SandboxID: rec.ID, NetNS: sb.NetNS,
		Name: config.GetMetadata().GetName(), Namespace: config.GetMetadata().GetNamespace(), UID: config.GetMetadata().GetUid(),
		Annotations: config.GetAnnotations(), CgroupParent: sb.CgroupParent, Ports: hostPorts(config),
	}
	if dns := config.GetDnsConfig(); dns != nil {
		att.DNS = &network.DNS{Servers: dns.GetServers(), Searches: dns.GetSearches(), Options: dns.GetOptions()}
	}
	return att, nil
}

// addresses are those that a pod may ask for.
func addresses(config *runtimeapi.PodSandboxConfig) ([]netip.Addr, error) {
	asked, err := network.AskedAddresses(config.GetAnnotations())
	if err != nil || len(asked) == 0 {
		return nil, err
	}
	security := config.GetLinux().GetSecurityContext()
	switch {
	case !security.GetPrivileged():
		return nil, network.RefusedAddresses("is for privileged pods only")
	case security.GetNamespaceOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE:
		return nil, network.RefusedAddresses("the pod has the host's network, and no address of its own")
	}
	return asked, nil
}

// hostPorts are the port mappings that ask for a port of the host; the others are for
// information only. Package cri/shape has checked them.
func hostPorts(config *runtimeapi.PodSandboxConfig) []network.Port {
	var ports []network.Port
	for _, p := range config.GetPortMappings() {
		if p.GetHostPort() == 0 {
			continue
		}
		ports = append(ports, network.Port{
			Protocol: strings.ToLower(p.GetProtocol().String()), ContainerPort: uint16(p.GetContainerPort()),
			HostPort: uint16(p.GetHostPort()), HostIP: p.GetHostIp(),
		})
	}
	return ports
}

func (s *Service) sandboxSpec(rec *SandboxRecord) *engine.SandboxSpec {
	return &engine.SandboxSpec{
		ID: rec.ID, Config: rec.Config.Get(), Handler: rec.Handler,
		Dir: filepath.Join(s.opts.RootDir, "sandboxes", rec.ID),
	}
}
