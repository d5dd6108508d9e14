package view

import (
	"fmt"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/berthrun/berth/internal/store"
)

// catalog is the list of the records of one kind as clients see it. A kubelet lists everything
// every second, and few records change between two of its lists. So each record is encoded once
// after each of its changes, and a list copies bytes.
type catalog[R any] struct {
	dir *store.Dir[R]
	// show returns a record as lists show it, nil for one that clients do not see.
	show func(*R) proto.Message
	// order is the order of the list.
	order func(a, b *R) int

	mu  sync.Mutex
	now *edition[R]
}

// edition is the list between two changes of any record. It does not change.
type edition[R any] struct {
	version uint64
	// records are those that clients see, in the order of the list. Items are the same records
	// encoded.
	records []*R
	items   Items
}

func newCatalog[R any](dir *store.Dir[R], show func(*R) proto.Message, order func(a, b *R) int) *catalog[R] {
	return &catalog[R]{dir: dir, show: show, order: order, now: &edition[R]{}}
}

// current returns the list of all records. It has every change that was complete when current was
// called: a record is replaced when it changes, so one that the last edition has is unchanged.
func (c *catalog[R]) current() (*edition[R], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, version, fresh := c.dir.Since(c.now.version)
	if !fresh {
		return c.now, nil
	}
	next, err := c.now.next(all, c.show, c.order)
	if err != nil {
		return nil, err
	}
	next.version = version
	c.now = next
	return next, nil
}

// next returns the edition of all records. It takes those that e has from it.
func (e *edition[R]) next(all []*R, show func(*R) proto.Message, order func(a, b *R) int) (*edition[R], error) {
	changed := make(map[*R]struct{}, len(all))
	for _, rec := range all {
		changed[rec] = struct{}{}
	}
	kept := make([]int, 0, len(e.records))
	for i, rec := range e.records {
		if _, same := changed[rec]; same {
			delete(changed, rec)
			kept = append(kept, i)
		}
	}
	type shown struct {
		rec  *R
		item proto.Message
	}
	var added []shown
	for rec := range changed {
		if item := show(rec); item != nil {
			added = append(added, shown{rec, item})
		}
	}
	slices.SortFunc(added, func(a, b shown) int { return order(a.rec, b.rec) })

	size := len(kept) + len(added)
	out := &edition[R]{
		records: make([]*R, 0, size),
		items:   Items{wire: make([]byte, 0, len(e.items.wire)), ends: make([]int, 0, size)},
	}
	for len(kept)+len(added) > 0 {
		if len(added) == 0 || len(kept) > 0 && order(e.records[kept[0]], added[0].rec) < 0 {
			out.records = append(out.records, e.records[kept[0]])
			out.items.appendWire(e.items.item(kept[0]))
			kept = kept[1:]
			continue
		}
		if err := out.items.Append(added[0].item); err != nil {
			return nil, fmt.Errorf("cannot encode a list: %w", err)
		}
		out.records = append(out.records, added[0].rec)
		added = added[1:]
	}
	return out, nil
}

// list returns the items of the records that selected chooses, all of them if it is nil.
func (c *catalog[R]) list(selected func(*R) bool) (Items, error) {
	now, err := c.current()
	if err != nil {
		return Items{}, err
	}
	if selected == nil {
		return now.items, nil
	}
	var items Items
	for i, rec := range now.records {
		if selected(rec) {
			items.appendWire(now.items.item(i))
		}
	}
	return items, nil
}
