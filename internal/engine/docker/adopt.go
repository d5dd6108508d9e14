package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/docker/checkpoints"
	"github.com/berthrun/berth/internal/engine/docker/labels"
	"github.com/berthrun/berth/internal/engine/docker/legacy"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// Adoption says which pods of another runtime the engine takes over.
type Adoption struct {
	// On is false for a berth that takes over no more pods. It keeps those that it has.
	On bool
	// Roots are the directories of dockershim and cri-dockerd. Their checkpoints are below.
	Roots []string
	// Quarantine is where copies of damaged checkpoints go.
	Quarantine string
}

var _ engine.Adopter = (*Engine)(nil)

// Former implements engine.Adopter: it lists the containers with the labels of dockershim and
// cri-dockerd.
func (e *Engine) Former(ctx context.Context) (*engine.Former, error) {
	former := &engine.Former{}
	if !e.cfg.Adoption.On {
		return former, nil
	}
	ids, err := e.findFormer(ctx)
	if err != nil || len(ids) == 0 {
		return former, err
	}
	err = legacy.Claim(e.facts.Load().RootDir, e.cfg.Instance)
	if errors.Is(err, errs.Exists) {
		e.log.Warn("leaving the pods of dockershim and cri-dockerd alone", "error", err)
		return former, nil
	}
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	broken := map[string]bool{} // ids of sandboxes
	g, groupCtx := errgroup.WithContext(ctx)
	g.SetLimit(2 * runtime.GOMAXPROCS(0))
	for id, sandboxID := range ids {
		g.Go(func() error {
			sandbox, c, err := e.readFormer(groupCtx, id)
			var foreign *legacy.ForeignError
			mu.Lock()
			defer mu.Unlock()
			switch {
			case groupCtx.Err() != nil || errors.Is(err, errs.Unavailable) || errors.Is(err, errs.Deadline):
				return err
			case errors.Is(err, errs.NotFound): // removed meanwhile
			case errors.As(err, &foreign):
				e.log.Error("leaving a container alone", "container", id, "error", err)
			case err != nil:
				e.log.Error("cannot adopt a container; leaving its whole pod alone", "container", id, "sandbox", sandboxID, "error", err)
				broken[sandboxID] = true
			case sandbox != nil:
				former.Sandboxes = append(former.Sandboxes, sandbox)
			case c != nil:
				former.Containers = append(former.Containers, c)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	// The kubelet would start a second instance of what is missing in a pod.
	former.Sandboxes = slices.DeleteFunc(former.Sandboxes, func(sb *engine.FormerSandbox) bool { return broken[sb.ID] })
	former.Containers = slices.DeleteFunc(former.Containers, func(c *engine.FormerContainer) bool { return broken[c.SandboxID] })
	for _, sandbox := range former.Sandboxes {
		legacy.Join(sandbox, former.Containers) // only they show whether they share a PID namespace
		pause := pauseContainer{EngineID: sandbox.ID, SharesPIDs: sharesPIDs(sandbox.Config)}
		if sandbox.Sandbox.Backend, err = engine.EncodeBackend(pause); err != nil {
			return nil, err
		}
	}
	return former, nil
}

// findFormer returns the ids of what can be adopted, each with that of its sandbox, and names in the
// log what is too old for it.
func (e *Engine) findFormer(ctx context.Context) (sandboxOf map[string]string, err error) {
	listed, err := e.client.ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return nil, fmt.Errorf("cannot list the containers of a former runtime: %w", err)
	}
	var old []string
	sandboxOf = map[string]string{}
	for i := range listed.Items {
		c := &listed.Items[i]
		switch legacy.OriginOf(c.Labels, c.Names) {
		case legacy.Adoptable:
			if sandboxOf[c.ID] = c.ID; c.Labels[labels.Type] != labels.TypeSandbox {
				sandboxOf[c.ID] = c.Labels[labels.SandboxDockerID]
			}
		case legacy.TooOld:
			old = append(old, strings.TrimPrefix(c.Names[0], "/"))
		case legacy.Other:
		}
	}
	if len(old) > 0 {
		e.log.Warn("leaving containers alone: they have names of pods and no labels of dockershim; remove them by hand when their pods are gone",
			"containers", strings.Join(old, ", "))
	}
	return sandboxOf, nil
}

// readFormer reads a container, which is either a sandbox or a container of one.
func (e *Engine) readFormer(ctx context.Context, id string) (*engine.FormerSandbox, *engine.FormerContainer, error) {
	answer, err := e.client.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return nil, nil, err
	}
	got := &answer.Container
	if got.State == nil || got.Config == nil || got.HostConfig == nil {
		return nil, nil, errors.New("the engine's answer has no state or no configuration")
	}
	if got.Config.Labels[labels.Type] == labels.TypeSandbox {
		sandbox, err := e.formerSandbox(got)
		return sandbox, nil, err
	}
	c, err := legacy.Container(got)
	if err != nil {
		return nil, nil, err
	}
	if c.State = stateOf(got.State.Status); c.State == engine.StateRunning {
		c.Pid = got.State.Pid
	}
	if exit, ended := e.exitOf(id, got.State, nil); ended {
		c.Exit = &exit
	}
	return nil, c, nil
}

func (e *Engine) formerSandbox(got *container.InspectResponse) (*engine.FormerSandbox, error) {
	if _, err := legacy.Sandbox(got, nil); err != nil { // before its id names a file
		return nil, err
	}
	checkpoint, err := e.former.Read(got.ID)
	var corrupt *checkpoints.CorruptError
	switch {
	case errors.As(err, &corrupt):
		e.log.Error("cannot read the host ports of a pod; adopting it without", "sandbox", got.ID, "error", err)
	case errs.IgnoreNotFound(err) != nil:
		return nil, err
	}
	sandbox, err := legacy.Sandbox(got, checkpoint)
	if err != nil {
		return nil, err
	}
	sandbox.Running = stateOf(got.State.Status) == engine.StateRunning
	// "" is the engine's own default, which other containers and services of the host share: berth
	// neither limits nor measures it.
	sandbox.Sandbox = &engine.Sandbox{CgroupParent: got.HostConfig.CgroupParent, Pid: got.State.Pid}
	if sandbox.Running && !request.HostNetwork(sandbox.Config) {
		sandbox.Sandbox.NetNS = e.sandboxPaths(got.ID).netns
	}
	return sandbox, nil
}

// AdoptSandbox implements engine.Adopter.
func (e *Engine) AdoptSandbox(ctx context.Context, id string, sb *engine.Sandbox) error {
	e.objects.adopt(id, true)
	got, err := e.objects.inspect(ctx, id)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	if sb == nil || !got.State.Running {
		return nil
	}
	if err := os.MkdirAll(e.sandboxPaths(id).dir, 0o700); err != nil {
		return fmt.Errorf("cannot make the sandbox's directory: %w", err)
	}
	obj := e.objects.started(id, got)
	if groups, err := e.podCgroups.Paths(sb.CgroupParent); err == nil && sb.CgroupParent != "" {
		e.meter.Watch(id, groups)
	}
	if sb.NetNS == "" {
		return nil
	}
	if ns, err := sysns.OpenNetNS(sb.NetNS); err == nil {
		return ns.Close() // an earlier attempt has pinned it
	}
	if err := sysns.RemoveNetNS(sb.NetNS); err != nil {
		return err
	}
	return e.pinNetNS(obj, sb.NetNS)
}

// AdoptContainer implements engine.Adopter.
func (e *Engine) AdoptContainer(_ context.Context, id string) error {
	e.objects.adopt(id, false)
	return nil
}

// removeCheckpoint removes what another runtime has noted of an adopted sandbox.
func (e *Engine) removeCheckpoint(id string) error {
	if !e.objects.isAdopted(id) {
		return nil
	}
	err := e.former.Remove(id)
	if errors.Is(err, syscall.EROFS) {
		e.log.Warn("the checkpoint of a sandbox of a former runtime stays", "sandbox", id, "error", err)
		return nil
	}
	return err
}
