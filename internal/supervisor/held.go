package supervisor

import (
	"context"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/berthrun/berth/internal/sys/sysfd"
)

// held are the client's duplicates of containers' descriptors. What the container
// reads from (its input, its terminal) the client writes to by them.
type held struct {
	mu    sync.Mutex
	files map[string]map[string]*holding
}

// holding is one descriptor.
type holding struct {
	file *os.File
	// turn is full while somebody writes.
	turn chan struct{}
	// inlets are lent out, and closed with file: an input that is closed must end for
	// the container.
	inlets map[*inlet]struct{}
}

func (h *holding) close() {
	h.file.Close()
	for in := range h.inlets {
		in.file.Close()
	}
}

// add takes files over.
func (h *held) add(set StreamSet, files []*os.File) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.files == nil {
		h.files = make(map[string]map[string]*holding)
	}
	for i, f := range files {
		if i >= len(set.Names) {
			f.Close()
			continue
		}
		name := set.Names[i]
		if name == StreamStdin || name == StreamTerminal {
			pollable, err := sysfd.Pollable(f)
			if err != nil {
				continue // not held: the keeper has one
			}
			f = pollable
		}
		if h.files[set.ID] == nil {
			h.files[set.ID] = make(map[string]*holding)
		}
		if old := h.files[set.ID][name]; old != nil {
			f.Close()
			continue
		}
		h.files[set.ID][name] = &holding{file: f, turn: make(chan struct{}, 1), inlets: make(map[*inlet]struct{})}
	}
}

// get returns a descriptor, nil when it is not held.
func (h *held) get(id, name string) *os.File {
	h.mu.Lock()
	defer h.mu.Unlock()
	if holding := h.files[id][name]; holding != nil {
		return holding.file
	}
	return nil
}

// lend returns a way to write to a descriptor that is the caller's own, to be closed
// by it; nil when the descriptor is not held. Writes end with ctx.
func (h *held) lend(ctx context.Context, id, name string) (*inlet, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	holding := h.files[id][name]
	if holding == nil {
		return nil, nil
	}
	own, err := sysfd.Duplicate(holding.file)
	if err != nil {
		return nil, err
	}
	in := &inlet{ctx: ctx, held: h, from: holding, file: own}
	holding.inlets[in] = struct{}{}
	return in, nil
}

// inlet is how one client writes to what a container reads. A descriptor of its own
// lets it give up, whatever the container does, and nobody else with it.
type inlet struct {
	ctx  context.Context //nolint:containedctx // the life of the client's attachment
	held *held
	from *holding
	file *os.File
}

// Write waits until nobody else writes, so that clients do not mix within a chunk.
func (in *inlet) Write(data []byte) (int, error) {
	select {
	case in.from.turn <- struct{}{}:
	case <-in.ctx.Done():
		return 0, in.ctx.Err()
	}
	defer func() { <-in.from.turn }()
	return in.file.Write(data)
}

// Close makes a Write that waits for the container return.
func (in *inlet) Close() error {
	in.held.mu.Lock()
	delete(in.from.inlets, in)
	in.held.mu.Unlock()
	return in.file.Close()
}

// drop closes what is held of a container, or some of it.
func (h *held) drop(id string, names ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, holding := range h.files[id] {
		if len(names) == 0 || slices.Contains(names, name) {
			holding.close()
			delete(h.files[id], name)
		}
	}
	if len(h.files[id]) == 0 {
		delete(h.files, id)
	}
}

func (h *held) dropAll() {
	for id := range h.names() {
		h.drop(id)
	}
}

// names tells what is held.
func (h *held) names() map[string][]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make(map[string][]string)
	for id, files := range h.files {
		all[id] = slices.Sorted(maps.Keys(files))
	}
	return all
}
