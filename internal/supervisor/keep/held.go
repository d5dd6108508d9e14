package keep

import (
	"fmt"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// holdings are the duplicates that the keeper holds, by key. They are plain numbers: the keeper
// never reads, writes or polls them.
type holdings struct {
	fds   Table[[]int]
	count int
	// limit is how many may be held, 0.8 of the process's limit.
	limit int
	store fdStore
}

func newHoldings(store fdStore) (*holdings, error) {
	_, limit, err := sysfd.CountFDs()
	if err != nil {
		return nil, err
	}
	return &holdings{limit: limit / 10 * 8, store: store}, nil
}

// hold takes the descriptors, in place of what the key held before. On error it closes them, and
// the key keeps what it held.
func (h *holdings) hold(key string, fds []int) error {
	err := h.check(key, fds)
	if err != nil {
		sysfd.CloseFDs(fds)
		return err
	}
	h.drop(key)
	h.adopt(key, fds)
	h.store.push(key, fds)
	return nil
}

// adopt is hold without checks and without a message to systemd: for what an earlier process
// image held.
func (h *holdings) adopt(key string, fds []int) {
	h.fds.Set(key, fds)
	h.count += len(fds)
}

func (h *holdings) check(key string, fds []int) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if strings.HasSuffix(key, "/") {
		return fmt.Errorf("key %q ends in a slash: %w", key, errs.Invalid)
	}
	if len(fds) == 0 || len(fds) > maxHold {
		return fmt.Errorf("%d descriptors under one key, 1 to %d are allowed: %w", len(fds), maxHold, errs.Invalid)
	}
	if h.count+len(fds) > h.limit {
		return fmt.Errorf("%d descriptors held of %d: %w", h.count, h.limit, errs.Exhausted)
	}
	return nil
}

// release closes what is held under key, or under every key that begins with it
// when it ends in "/". It is no error when that is nothing.
func (h *holdings) release(key string) {
	for _, each := range h.fds.Below(key) {
		h.drop(each)
	}
}

func (h *holdings) drop(key string) {
	fds, ok := h.fds.Get(key)
	if !ok {
		return
	}
	sysfd.CloseFDs(fds)
	h.fds.Delete(key)
	h.count -= len(fds)
	h.store.remove(key, len(fds))
}
