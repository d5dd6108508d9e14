package nodepage

import (
	"context"
	"fmt"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// readTime bounds one reading of the daemon's parts.
const readTime = 10 * time.Second

// shared is an answer that all clients share, as long as it is young.
type shared[T any] struct {
	age  time.Duration
	read func(ctx context.Context) (T, error)
	// lock has one value while nobody reads. It guards the rest.
	lock chan struct{}
	at   *time.Time
	last *T
}

func newShared[T any](age time.Duration, read func(ctx context.Context) (T, error)) shared[T] {
	s := shared[T]{age: age, read: read, lock: make(chan struct{}, 1), at: new(time.Time), last: new(T)}
	s.lock <- struct{}{}
	return s
}

// get returns the answer, or reads a new one. Who comes meanwhile waits for it: a part that hangs has one reader. A failed
// reading is not kept.
func (s *shared[T]) get(ctx context.Context) (answer T, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	select {
	case <-s.lock:
	case <-ctx.Done():
		return answer, fmt.Errorf("the daemon is busy with an earlier request for the same: %w: %w", errs.Unavailable, ctx.Err())
	}
	defer func() { s.lock <- struct{}{} }()
	if !s.at.IsZero() && time.Since(*s.at) < s.age {
		return *s.last, nil
	}
	answer, err = s.read(ctx)
	if err != nil {
		return answer, err
	}
	*s.at, *s.last = time.Now(), answer
	return answer, nil
}
