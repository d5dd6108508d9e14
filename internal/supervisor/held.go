package supervisor

import (
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
	files map[string]map[string]*os.File
}

// add takes files over.
func (h *held) add(set StreamSet, files []*os.File) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.files == nil {
		h.files = make(map[string]map[string]*os.File)
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
			h.files[set.ID] = make(map[string]*os.File)
		}
		if old := h.files[set.ID][name]; old != nil {
			f.Close()
			continue
		}
		h.files[set.ID][name] = f
	}
}

// get returns a descriptor, nil when it is not held.
func (h *held) get(id, name string) *os.File {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.files[id][name]
}

// drop closes what is held of a container, or some of it.
func (h *held) drop(id string, names ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, f := range h.files[id] {
		if len(names) == 0 || slices.Contains(names, name) {
			f.Close()
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
