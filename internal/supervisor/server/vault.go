package server

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/supervisor/keep"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// Keeper is the part of keep.Client that the server needs.
type Keeper interface {
	Hold(ctx context.Context, key string, files ...*os.File) error
	Release(ctx context.Context, key string) error
	Held(ctx context.Context) ([]keep.Held, error)
	Exit(ctx context.Context, pid int, start uint64) (keep.Exit, error)
	Forget(ctx context.Context, pid int, start uint64) error
	Ready(ctx context.Context) error
	Lost() <-chan struct{}
	TakeOver(held []keep.Held) error
}

// keeperTimeout bounds one question to the keeper, which answers at once or is
// dead.
const keeperTimeout = 5 * time.Second

// vault puts duplicates of descriptors into the keeper and remembers them, for
// the day that this process has to take the keeper's place. The files stay their
// owners'; they are released before they are closed.
//
// Without a keeper nothing is kept: a death of this process then costs what the
// daemon's duplicates do not save.
type vault struct {
	keeper Keeper // may be nil
	log    *slog.Logger

	mu   sync.Mutex
	held map[string][]*os.File
	told bool
}

func newVault(keeper Keeper, log *slog.Logger) *vault {
	return &vault{keeper: keeper, log: log, held: make(map[string][]*os.File)}
}

// hold keeps files under key, in place of what was there. The end of ctx ends the wait
// for the keeper's answer only: the files are on their way to it by then.
func (v *vault) hold(ctx context.Context, key string, files ...*os.File) {
	v.mu.Lock()
	v.held[key] = files
	v.mu.Unlock()
	if v.keeper == nil {
		return
	}
	bounded, stop := context.WithTimeout(ctx, keeperTimeout)
	defer stop()
	if err := v.keeper.Hold(bounded, key, files...); err != nil && !errors.Is(err, ctx.Err()) {
		v.complain("the keeper does not hold descriptors", key, err)
	}
}

// release lets go of key, or of everything below it when it ends in "/".
func (v *vault) release(key string) {
	v.mu.Lock()
	for k := range v.held {
		if k == key || strings.HasSuffix(key, "/") && strings.HasPrefix(k, key) {
			delete(v.held, k)
		}
	}
	v.mu.Unlock()
	if v.keeper == nil {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), keeperTimeout)
	defer stop()
	if err := v.keeper.Release(ctx, key); err != nil {
		v.complain("the keeper does not release descriptors", key, err)
	}
}

// fetch returns duplicates of all that a predecessor left. They become the
// vault's own until take is called for their key.
func (v *vault) fetch(ctx context.Context) error {
	if v.keeper == nil {
		return nil
	}
	all, err := v.keeper.Held(ctx)
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, h := range all {
		v.held[h.Key] = h.Files
	}
	return nil
}

// get returns what is held under key.
func (v *vault) get(key string) []*os.File {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.held[key])
}

// keys returns every key.
func (v *vault) keys() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	keys := make([]string, 0, len(v.held))
	for k := range v.held {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// all returns everything, for TakeOver.
func (v *vault) all() []keep.Held {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []keep.Held
	for k, files := range v.held {
		// Who closes a file releases it before; but he may be in between.
		open := slices.DeleteFunc(slices.Clone(files), func(f *os.File) bool {
			_, err := sysfd.FileFD(f)
			return err != nil
		})
		if len(open) > 0 {
			all = append(all, keep.Held{Key: k, Files: open})
		}
	}
	return all
}

// complain tells once in a row: a dead keeper fails every call.
func (v *vault) complain(what, key string, err error) {
	v.mu.Lock()
	told := v.told
	v.told = true
	v.mu.Unlock()
	if !told && !errors.Is(err, context.Canceled) {
		v.log.Warn(what, "key", key, "error", err)
	}
}
