package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/native/volume"
	"github.com/berthrun/berth/internal/supervisor"
)

// List looks in every place where a part of a sandbox or a container can be left.
func (e *Engine) List(ctx context.Context) ([]engine.Actual, error) {
	containers, err := e.cfg.Supervisor.List(ctx)
	if err != nil {
		return nil, err
	}
	sandboxes, err := e.listSandboxes()
	if err != nil {
		return nil, err
	}
	bundles, err := names(e.bundles.Root)
	if err != nil {
		return nil, err
	}
	keys, err := e.cfg.Rootfs.Keys(ctx)
	if err != nil {
		return nil, err
	}

	found := map[string]engine.Actual{}
	keys = slices.DeleteFunc(keys, func(key string) bool {
		id, ok := volume.SandboxOfKey(key)
		if ok {
			sandboxes[id] = true
		}
		return ok
	})
	for _, id := range slices.Concat(bundles, keys) {
		found[id] = engine.Actual{Kind: engine.KindContainer, ID: id, State: engine.StateBroken}
	}
	for _, c := range containers {
		found[c.ID] = engine.Actual{Kind: engine.KindContainer, ID: c.ID, State: stateOf(c.State), Pid: c.Pid}
	}
	for id := range sandboxes {
		// A container with its id is the sandbox's own init.
		actual := engine.Actual{Kind: engine.KindSandbox, ID: id, State: engine.StateCreated}
		if init, ok := found[id]; ok {
			actual.State, actual.Pid = init.State, init.Pid
		}
		found[id] = actual
	}
	list := make([]engine.Actual, 0, len(found))
	for _, actual := range found {
		list = append(list, actual)
	}
	slices.SortFunc(list, func(a, b engine.Actual) int { return strings.Compare(a.ID, b.ID) })
	return list, nil
}

// listSandboxes returns the sandboxes of which there is a directory or a network
// namespace.
func (e *Engine) listSandboxes() (map[string]bool, error) {
	dirs, err := names(e.sandboxesDir())
	if err != nil {
		return nil, err
	}
	ids := make(map[string]bool, len(dirs))
	for _, id := range dirs {
		ids[id] = true
	}
	pins, err := names(e.cfg.NetNSDir)
	if err != nil {
		return nil, err
	}
	for _, pin := range pins {
		// The prefix alone may be that of another instance with a longer name.
		if id, ours := strings.CutPrefix(pin, e.netnsPrefix()); ours && !strings.Contains(id, "-") {
			ids[id] = true
		}
	}
	return ids, nil
}

// Exits delivers the exits that the supervisor reports. The exit of a pod's init has the
// sandbox's id, which is the init's id as a container.
func (e *Engine) Exits(ctx context.Context) (<-chan engine.Exit, error) {
	from, err := e.cfg.Supervisor.Exits(ctx)
	if err != nil {
		return nil, err
	}
	to := make(chan engine.Exit)
	go func() {
		defer close(to)
		for exit := range from {
			select {
			case to <- exitOf(exit):
			case <-ctx.Done():
				return
			}
		}
	}()
	return to, nil
}

func exitOf(exit supervisor.Exit) engine.Exit {
	out := engine.Exit{
		ContainerID: exit.ID, Code: exit.Code, At: exit.At, OOMKilled: exit.OOMKilled, Message: exit.Message,
	}
	switch {
	case exit.Unknown:
		out.Reason = engine.ReasonUnknown
	case exit.StartFailed:
		// The init's status says nothing about the program, which never ran.
		out.Reason, out.Code = engine.ReasonStartError, engine.CodeStartError
	}
	return out
}

func stateOf(state supervisor.ContainerState) engine.State {
	switch state {
	case supervisor.Created:
		return engine.StateCreated
	case supervisor.Running:
		return engine.StateRunning
	case supervisor.Exited:
		return engine.StateStopped
	}
	return engine.StateBroken
}

// names lists a directory, empty when there is none.
func names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot list what is left: %w", err)
	}
	list := make([]string, 0, len(entries))
	for _, entry := range entries {
		list = append(list, entry.Name())
	}
	return list, nil
}
