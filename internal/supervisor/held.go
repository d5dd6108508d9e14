package supervisor

import (
	"context"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/berthrun/berth/internal/sys/sysfd"
)

// held has the client's duplicates of containers' descriptors. The client writes to the input
// or the terminal of a container through them.
type held struct {
	mu    sync.Mutex
	files map[string]map[string]*holding
}

// holding is one descriptor.
type holding struct {
	file *os.File
	// turn is full while a client writes.
	turn chan struct{}
	// inlets are open for clients, and closed with file: the container must see the end of
	// an input that is closed.
	inlets map[*inlet]struct{}
}

func (h *holding) close() {
	h.file.Close()
	for in := range h.inlets {
		in.file.Close()
	}
}

// add takes files, which it owns from now on.
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

// openInlet returns an inlet of a descriptor, which the caller closes; nil when the descriptor
// is not held. Writes end with ctx.
func (h *held) openInlet(ctx context.Context, id, name string) (*inlet, error) {
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

// inlet writes the input of one client to the input of a container. It has its own descriptor,
// so that it can abort its write alone, whatever the container does.
type inlet struct {
	ctx  context.Context //nolint:containedctx // the life of the client's attachment
	held *held
	from *holding
	file *os.File
}

// Write waits until no other client writes, so that chunks of clients do not mix.
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

// names returns the names of what is held, by container.
func (h *held) names() map[string][]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make(map[string][]string)
	for id, files := range h.files {
		all[id] = slices.Sorted(maps.Keys(files))
	}
	return all
}
