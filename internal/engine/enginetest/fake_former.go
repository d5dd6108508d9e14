package enginetest

import (
	"context"
	"time"

	"github.com/berthrun/berth/internal/engine"
)

// AddFormer puts sandboxes and containers on the machine that another runtime made. The engine
// lists them once they are adopted.
func (f *Fake) AddFormer(former *engine.Former) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.former = former
	for _, sb := range former.Sandboxes {
		f.sandboxes[sb.ID] = &fakeSandbox{started: true, stopped: !sb.Running, foreign: true}
	}
	for _, c := range former.Containers {
		made := &fakeContainer{
			spec:  &engine.ContainerSpec{ID: c.ID, Config: c.Config},
			state: c.State, pid: c.Pid, exit: c.Exit, ended: make(chan struct{}), foreign: true,
		}
		if c.Exit != nil {
			close(made.ended)
		}
		f.containers[c.ID] = made
	}
}

// Former implements engine.Adopter.
func (f *Fake) Former(context.Context) (*engine.Former, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	found := &engine.Former{}
	if f.former == nil {
		return found, nil
	}
	for _, sb := range f.former.Sandboxes {
		if at := f.sandboxes[sb.ID]; at != nil {
			now := *sb
			now.Running = !at.stopped
			found.Sandboxes = append(found.Sandboxes, &now)
		}
	}
	for _, c := range f.former.Containers {
		if at := f.containers[c.ID]; at != nil {
			now := *c
			now.State, now.Pid, now.Exit = at.state, at.pid, at.exit
			found.Containers = append(found.Containers, &now)
		}
	}
	return found, nil
}

// AdoptSandbox implements engine.Adopter.
func (f *Fake) AdoptSandbox(_ context.Context, id string, _ *engine.Sandbox) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if sb := f.sandboxes[id]; sb != nil {
		sb.foreign = false
	}
	return nil
}

// AdoptContainer implements engine.Adopter.
func (f *Fake) AdoptContainer(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.containers[id]; c != nil {
		c.foreign = false
	}
	return nil
}

// FormerExit is the exit of a container that ended under another runtime.
func FormerExit(id string, code int32) *engine.Exit {
	return &engine.Exit{ContainerID: id, Code: code, At: time.Unix(1646300000, 0)}
}
