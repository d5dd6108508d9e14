package docker

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/engine/docker/endings"
	"github.com/berthrun/berth/internal/engine/docker/labels"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// object is what the engine has cached of a container of the Docker Engine: of a pause
// container, or of a container of a pod.
type object struct {
	// engineID is the Docker Engine's id.
	engineID string
	sandbox  bool
	tty      bool
	// stdinOnce is true when the container's input ends with that of its first client.
	stdinOnce bool
	// pid is the process of the last start that is known, 0 before. cgroups are its cgroups,
	// upper is the directory with what the container writes, "" if that is not known.
	pid     int
	cgroups cgroup.Paths
	upper   string
	*fate
}

// fate is what becomes of a container. All copies of an object share it.
type fate struct {
	// removing is true once this engine removes the container, died once the end of its process is
	// accepted as its exit. What runs after that was started by another program.
	removing, died atomic.Bool
	// unread is true while the engine does not answer an inspect of it.
	unread atomic.Bool
	// sought is when findProcess looked for its process the last time, in nanoseconds since 1970.
	sought atomic.Int64
	// starting holds back its end while a start is under way.
	starting endings.Starting
	// witness has the exit code of its process, from the kernel.
	witness endings.Witness
}

// objects maps CRI ids to containers of the Docker Engine. The engine's labels are the
// truth; this is a cache of them. All methods are safe for concurrent use.
type objects struct {
	client   *api.Client
	instance string
	tree     *cgroup.Tree
	log      *slog.Logger

	mu   sync.Mutex
	byID map[string]object
	// ids maps the Docker Engine's ids back.
	ids map[string]string
	// adopted are CRI ids of containers that another runtime made.
	adopted map[string]bool
	// creating are CRI ids of containers whose create is under way: the Docker Engine may have made
	// one that is not in byID yet.
	creating map[string]bool
}

func newObjects(c *api.Client, instance string, tree *cgroup.Tree, log *slog.Logger) *objects {
	return &objects{
		client: c, instance: instance, tree: tree, log: log,
		byID: map[string]object{}, ids: map[string]string{}, adopted: map[string]bool{}, creating: map[string]bool{},
	}
}

func (o *objects) put(id string, obj object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if obj.fate == nil {
		obj.fate = &fate{}
	}
	o.byID[id] = obj
	o.ids[obj.engineID] = id
}

// update replaces what is cached of a container, unless it was forgotten since obj was read.
func (o *objects) update(id string, obj object) (done bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byID[id].fate != obj.fate {
		return false
	}
	o.byID[id] = obj
	return true
}

// create notes that a create of a container is under way, until end is called.
func (o *objects) create(id string) (end func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.creating[id] = true
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.creating, id)
	}
}

// isHeld reports whether a container of the Docker Engine with the label id is known, or may be one
// whose create is under way.
func (o *objects) isHeld(id, engineID string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.creating[id] || o.ids[engineID] != ""
}

func (o *objects) forget(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.byID[id].sandbox { // of a sandbox more is left to remove; see removed
		delete(o.adopted, id)
	}
	if obj, ok := o.byID[id]; ok {
		obj.witness.Close()
	}
	delete(o.ids, o.byID[id].engineID)
	delete(o.byID, id)
}

// removed forgets that a sandbox was adopted.
func (o *objects) removed(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.adopted, id)
}

// remove notes that the engine removes the container, so that its end is no surprise.
func (o *objects) remove(id string) {
	if obj, ok := o.cached(id); ok {
		obj.removing.Store(true)
	}
}

// known returns all that is cached, by CRI id.
func (o *objects) known() map[string]object {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.byID)
}

// cached returns what is known without a call.
func (o *objects) cached(id string) (object, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	obj, ok := o.byID[id]
	return obj, ok
}

// idOf returns the CRI id of a container of the Docker Engine, "" for one that is not ours.
func (o *objects) idOf(engineID string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ids[engineID]
}

// adopt takes over a container that another runtime made. Its CRI id is the Docker Engine's.
func (o *objects) adopt(id string, sandbox bool) {
	o.mu.Lock()
	o.adopted[id] = true
	o.mu.Unlock()
	if _, known := o.cached(id); !known {
		o.put(id, object{engineID: id, sandbox: sandbox})
	}
}

// isAdopted reports whether another runtime made the container.
func (o *objects) isAdopted(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.adopted[id]
}

// find returns the container with a CRI id. Kind NotFound if there is none.
func (o *objects) find(ctx context.Context, id string) (object, error) {
	if obj, ok := o.cached(id); ok {
		return obj, nil
	}
	found, err := o.client.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", labels.ID+"="+id),
	})
	if err != nil {
		return object{}, err
	}
	own := slices.DeleteFunc(found.Items, func(c container.Summary) bool { return c.Labels[labels.Instance] != o.instance })
	c, err := o.choose(ctx, id, own)
	if err != nil {
		return object{}, err
	}
	return o.learn(id, c), nil
}

// choose returns the container with a CRI id out of those that have the label: the one that is known,
// or else the oldest that berth has made. Kind NotFound if it has made none of them.
func (o *objects) choose(ctx context.Context, id string, labelled []container.Summary) (*container.Summary, error) {
	slices.SortStableFunc(labelled, func(a, b container.Summary) int { return cmp.Compare(a.Created, b.Created) })
	if obj, known := o.cached(id); known {
		for i := range labelled {
			if labelled[i].ID == obj.engineID {
				return &labelled[i], nil
			}
		}
	}
	for i := range labelled {
		own, err := o.isOwn(ctx, &labelled[i])
		if err != nil || own {
			return &labelled[i], err
		}
	}
	return nil, fmt.Errorf("container %s of the Docker engine: %w", id, errs.NotFound)
}

// isOwn reports whether berth has made a container with its labels. One that a person has renamed is in
// berth's cgroups and networks; one that a person has run from an image with these labels is not.
func (o *objects) isOwn(ctx context.Context, c *container.Summary) (bool, error) {
	if labels.HasOwnName(c.Labels, c.Names) {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	got, err := o.client.ContainerInspect(ctx, c.ID, client.ContainerInspectOptions{})
	if err != nil {
		return false, errs.IgnoreNotFound(err)
	}
	host := got.Container.HostConfig
	return host != nil && host.CgroupParent != "" && labels.IsInPlace(c.Labels, string(host.NetworkMode)), nil
}

// learn caches a container that the Docker Engine has listed.
func (o *objects) learn(id string, c *container.Summary) object {
	obj, ok := o.cached(id)
	if ok && obj.engineID == c.ID {
		return obj
	}
	obj = object{engineID: c.ID, sandbox: c.Labels[labels.Type] == labels.TypeSandbox}
	o.put(id, obj)
	obj, _ = o.cached(id)
	return obj
}

// inspect reads a container. Kind NotFound if there is none. What is cached stays: the listener of
// exits needs it for a container that another program has removed.
func (o *objects) inspect(ctx context.Context, id string) (*container.InspectResponse, error) {
	obj, err := o.find(ctx, id)
	if err != nil {
		return nil, err
	}
	got, err := o.client.ContainerInspect(ctx, obj.engineID, client.ContainerInspectOptions{})
	if err != nil {
		return nil, err
	}
	if got.Container.State == nil || got.Container.Config == nil || got.Container.HostConfig == nil {
		return nil, fmt.Errorf("docker inspect container: the engine's answer about %s has no state or no configuration", id)
	}
	return &got.Container, nil
}

// rejoin brings the processes of a container back into its cgroup; see cgroup.Tree.Rejoin. An engine that
// is started again takes a container without processes in its cgroup for one that has ended.
func (o *objects) rejoin(id string, pid int, engineID string) {
	if pid == 0 {
		return
	}
	moved, err := o.tree.Rejoin(pid, engineID)
	if moved {
		o.log.Info("systemd has moved processes of a container out of its cgroup; they are moved back", "id", id, "dockerID", engineID, "pid", pid)
	}
	if errs.IgnoreNotFound(err) != nil {
		o.log.Warn("cannot move the processes of a container back into its cgroup", "id", id, "dockerID", engineID, "error", err)
	}
}

// rejoinKnown does the same for a container whose process is known.
func (o *objects) rejoinKnown(id string) {
	if obj, ok := o.cached(id); ok {
		o.rejoin(id, obj.pid, obj.engineID)
	}
}

// started caches the process of a running container, with its cgroups and its writable
// layer. It caches nothing of a container that was forgotten meanwhile.
func (o *objects) started(id string, got *container.InspectResponse) object {
	obj, ok := o.cached(id)
	switch {
	case !ok || obj.engineID != got.ID:
		obj = object{engineID: got.ID, fate: &fate{}}
	case obj.pid == got.State.Pid && obj.pid != 0:
		return obj
	}
	obj.tty, obj.stdinOnce = got.Config.Tty, got.Config.StdinOnce
	obj.sandbox = got.Config.Labels[labels.Type] == labels.TypeSandbox
	o.rejoin(id, got.State.Pid, got.ID)
	// Without a cgroup of the container the process has ended meanwhile: its pid is a zombie's or
	// that of a process of others, and none of their cgroups may be killed.
	pid := got.State.Pid
	if groups, err := o.tree.OfContainer(pid, got.ID); pid != 0 && err == nil {
		obj.pid, obj.cgroups = pid, groups
	}
	obj.upper = upperDir(got, obj.pid)
	if o.update(id, obj) && obj.pid != 0 {
		obj.witness.Watch(pid, func() bool {
			_, err := o.tree.OfContainer(pid, got.ID)
			return err == nil
		})
	}
	return obj
}
