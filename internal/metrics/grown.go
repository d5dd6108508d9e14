package metrics

import (
	"maps"
	"sync"
	"sync/atomic"
)

// grown is a table that only grows, up to maxValuesOfOneLabel entries. A read takes no lock and
// allocates nothing, so that no event waits for another one.
type grown[V any] struct {
	mu  sync.Mutex
	now atomic.Pointer[map[string]V]
}

// get returns the entry of a key, which create makes once. When the table is full, keys without an entry
// share that of otherValue.
func (g *grown[V]) get(key string, create func(key string) V) V {
	if now := g.now.Load(); now != nil {
		if value, ok := (*now)[key]; ok {
			return value
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var have map[string]V
	if now := g.now.Load(); now != nil {
		have = *now
	}
	if _, ok := have[key]; !ok && len(have) >= maxValuesOfOneLabel {
		key = otherValue
	}
	if value, ok := have[key]; ok {
		return value
	}
	next := make(map[string]V, len(have)+1)
	maps.Copy(next, have)
	value := create(key)
	next[key] = value
	g.now.Store(&next)
	return value
}

// names bounds the values of one label.
type names struct{ grown[string] }

// of returns the name, or otherValue where there are too many.
func (n *names) of(name string) string { return n.get(name, func(key string) string { return key }) }
