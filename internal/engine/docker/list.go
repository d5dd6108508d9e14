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
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/docker/labels"
	"github.com/berthrun/berth/internal/engine/docker/legacy"
	"github.com/berthrun/berth/internal/errs"
)

// Bounds of the inspects of a list: how long it waits for one container, and how many it inspects at a
// time. Each container that hangs takes the time of one.
const (
	inspectTimeout = 3 * time.Second
	inspectLimit   = 16
)

// List reports the containers of the Docker Engine that have this berth's label, those that
// it has adopted, and what is left on the host of others.
func (e *Engine) List(ctx context.Context) ([]engine.Actual, error) {
	owned, err := e.objects.list(ctx)
	if err != nil {
		return nil, err
	}
	found := map[string]engine.Actual{}
	if err := e.listLeft(found); err != nil {
		return nil, err
	}
	var mu sync.Mutex
	g, groupCtx := errgroup.WithContext(ctx)
	g.SetLimit(max(inspectLimit, 2*runtime.GOMAXPROCS(0)))
	for id, c := range owned {
		g.Go(func() error {
			actual, err := e.actualOf(groupCtx, id, &c)
			switch {
			case errors.Is(err, errs.NotFound): // removed meanwhile
				return nil
			case err != nil && (groupCtx.Err() != nil || api.IsAway(err)):
				return err
			case err != nil:
				e.logUnread(id, &c, err)
				actual.State = engine.StateUnknown
			}
			mu.Lock()
			defer mu.Unlock()
			found[id] = actual
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	list := make([]engine.Actual, 0, len(found))
	for _, actual := range found {
		list = append(list, actual)
	}
	slices.SortFunc(list, func(a, b engine.Actual) int { return strings.Compare(a.ID, b.ID) })
	return list, nil
}

// stateUnread is the state in a list of a container about which the engine does not answer.
const stateUnread container.ContainerState = "unread"

// list returns the containers of this berth by CRI id. One that is not known, and about which the engine does not
// answer, has stateUnread, and may be another program's.
func (o *objects) list(ctx context.Context) (map[string]container.Summary, error) {
	own, err := o.client.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", labels.Instance+"="+o.instance),
	})
	if err != nil {
		return nil, err
	}
	byID := map[string][]container.Summary{}
	for _, c := range own.Items {
		if id := c.Labels[labels.ID]; id != "" {
			byID[id] = append(byID[id], c)
		}
	}
	all := map[string]container.Summary{}
	for id, labelled := range byID {
		c, err := o.choose(ctx, id, labelled)
		switch {
		case errors.Is(err, errs.NotFound):
		case err != nil && (ctx.Err() != nil || api.IsAway(err)):
			return nil, err
		case err != nil:
			o.log.Warn("the Docker engine does not report whether a container, which has another name than berth gave it, is berth's; berth asks again",
				"container", id, "dockerID", labelled[0].ID, "error", err)
			labelled[0].State = stateUnread
			all[id] = labelled[0]
		default:
			o.learn(id, c)
			all[id] = *c
		}
	}
	return all, o.listAdopted(ctx, all)
}

// listAdopted adds the containers that another runtime made and that were adopted.
func (o *objects) listAdopted(ctx context.Context, all map[string]container.Summary) error {
	o.mu.Lock()
	none := len(o.adopted) == 0
	o.mu.Unlock()
	if none {
		return nil
	}
	others, err := o.client.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", labels.Type),
	})
	if err != nil {
		return err
	}
	for _, c := range others.Items {
		o.mu.Lock()
		adopted := o.adopted[c.ID]
		o.mu.Unlock()
		if adopted {
			o.learn(c.ID, &c)
			all[c.ID] = c
		}
	}
	return nil
}

// logUnread logs once that the state of a container cannot be read, until it can be.
func (e *Engine) logUnread(id string, c *container.Summary, err error) {
	if obj, ok := e.objects.cached(id); ok && !obj.unread.Swap(true) {
		e.log.Warn("the Docker engine does not report the state of a container, which may hang in its start; berth asks again",
			"container", id, "dockerID", c.ID, "listedAs", c.State, "error", err)
	}
}

// actualOf inspects a container: a list has no process ids.
func (e *Engine) actualOf(ctx context.Context, id string, c *container.Summary) (engine.Actual, error) {
	actual := engine.Actual{Kind: engine.KindContainer, ID: id, State: stateOf(c.State)}
	if c.Labels[labels.Type] == labels.TypeSandbox {
		actual.Kind = engine.KindSandbox
	}
	if actual.State != engine.StateRunning && actual.State != engine.StateCreated {
		return actual, nil
	}
	// A Docker Engine that is starting a container lists it as created. It answers this call once it
	// has started it: without the wait, a kubelet would see a container that was not started, and run
	// another one. The start may hang, on a dead volume for example.
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	got, err := e.objects.inspect(ctx, id)
	if err != nil {
		return actual, err
	}
	if obj, ok := e.objects.cached(id); ok {
		obj.unread.Store(false)
	}
	if actual.State = stateOf(got.State.Status); actual.State != engine.StateRunning {
		return actual, nil
	}
	obj := e.objects.started(id, got)
	actual.Pid = obj.pid
	if actual.Kind == engine.KindContainer {
		e.meter.Watch(id, obj.cgroups)
		e.continueLog(id, got)
	}
	return actual, nil
}

// continueLog goes on with the log of a container that was started before.
func (e *Engine) continueLog(id string, got *container.InspectResponse) {
	path, root := got.Config.Labels[labels.LogPath], got.Config.Labels[labels.LogDirectory]
	if e.objects.isAdopted(id) {
		path, root = legacy.LogOf(got)
	}
	if path == "" {
		return
	}
	log := e.logOf(id, got.ID, path, got.Config.Tty)
	log.Root = root
	err := os.MkdirAll(e.containerDir(id), 0o700)
	if err == nil {
		err = e.logs.Follow(log)
	}
	if err != nil {
		e.log.Error("cannot continue the log of a container", "container", id, "path", path, "error", err)
	}
}

// listLeft adds what is left on the host of sandboxes and containers: directories and pins.
func (e *Engine) listLeft(found map[string]engine.Actual) error {
	for _, left := range []struct {
		dir, prefix string
		kind        engine.Kind
		state       engine.State
	}{
		{e.containersDir(), "", engine.KindContainer, engine.StateGone},
		{e.sandboxesDir(), "", engine.KindSandbox, engine.StateBroken},
		{e.cfg.NetNSDir, e.netnsPrefix(), engine.KindSandbox, engine.StateBroken},
	} {
		entries, err := os.ReadDir(left.dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot list what is left: %w", err)
		}
		for _, entry := range entries {
			// The prefix alone may be that of another instance with a longer name.
			if id, ours := strings.CutPrefix(entry.Name(), left.prefix); ours && !strings.Contains(id, "-") {
				found[id] = engine.Actual{Kind: left.kind, ID: id, State: left.state}
			}
		}
	}
	return nil
}

func stateOf(state container.ContainerState) engine.State {
	switch state {
	case container.StateCreated:
		return engine.StateCreated
	case container.StateRunning, container.StatePaused, container.StateRestarting:
		return engine.StateRunning
	case container.StateExited, container.StateDead:
		return engine.StateStopped
	case stateUnread:
		return engine.StateUnknown
	case container.StateRemoving:
	}
	return engine.StateBroken
}
