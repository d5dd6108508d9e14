package keep

import (
	"iter"
	"maps"
	"slices"
	"strings"
)

// Table has values by their key in the keeper, "<container id>/<name>". It finds those of one
// container without a look at the others. The zero value is empty.
type Table[V any] struct {
	// owners has the values by what precedes the first slash of their key, and by their key.
	owners map[string]map[string]V
}

func ownerOf(key string) string {
	owner, _, _ := strings.Cut(key, "/")
	return owner
}

// Get returns the value of a key. ok is false when it has none.
func (t *Table[V]) Get(key string) (value V, ok bool) {
	value, ok = t.owners[ownerOf(key)][key]
	return value, ok
}

// Set gives a key its value.
func (t *Table[V]) Set(key string, value V) {
	owner := ownerOf(key)
	if t.owners == nil {
		t.owners = map[string]map[string]V{}
	}
	if t.owners[owner] == nil {
		t.owners[owner] = map[string]V{}
	}
	t.owners[owner][key] = value
}

// Delete removes a key.
func (t *Table[V]) Delete(key string) {
	owner := ownerOf(key)
	delete(t.owners[owner], key)
	if len(t.owners[owner]) == 0 {
		delete(t.owners, owner)
	}
}

// Below returns the keys that a Release of key means, sorted: the key itself, or every key that
// begins with it when it ends in "/".
func (t *Table[V]) Below(key string) []string {
	var found []string
	for each := range t.owners[ownerOf(key)] {
		if each == key || strings.HasSuffix(key, "/") && strings.HasPrefix(each, key) {
			found = append(found, each)
		}
	}
	slices.Sort(found)
	return found
}

// Keys returns every key, sorted.
func (t *Table[V]) Keys() []string {
	var keys []string
	for _, values := range t.owners {
		keys = slices.AppendSeq(keys, maps.Keys(values))
	}
	slices.Sort(keys)
	return keys
}

// All returns every key with its value, in no order.
func (t *Table[V]) All() iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, values := range t.owners {
			for key, value := range values {
				if !yield(key, value) {
					return
				}
			}
		}
	}
}
