package keyed

import (
	"context"
	"errors"
	"testing"
)

func TestLocksAreFairAndWaitsEndWithTheContext(t *testing.T) {
	var m Mutex
	unlock, err := m.Lock(context.Background(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if unlockB, err := m.Lock(context.Background(), "b"); err != nil {
		t.Fatal(err)
	} else {
		unlockB()
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	reason := errors.New("reason")
	cancel(reason)
	if _, err := m.Lock(ctx, "a"); !errors.Is(err, reason) {
		t.Errorf("error %v", err)
	}
	if unlockC, err := m.Lock(ctx, "c"); err != nil {
		t.Errorf("a free key and a context that has ended: %v", err)
	} else {
		unlockC()
	}
	got := make(chan func())
	go func() {
		next, err := m.Lock(context.Background(), "a")
		if err != nil {
			t.Error(err)
		}
		got <- next
	}()
	unlock()
	(<-got)()
	if len(m.held) != 0 {
		t.Errorf("%d locks are left", len(m.held))
	}
}
