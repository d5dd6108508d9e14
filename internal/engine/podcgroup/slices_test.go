package podcgroup

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"

	"github.com/berthrun/berth/internal/errs"
)

// hungSystemd is a socket that accepts connections and never answers. reached receives a value for
// each connection.
func hungSystemd(t *testing.T) (connect func(context.Context) (*dbus.Conn, error), reached <-chan struct{}) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "private")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	came := make(chan struct{}, 16)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
			came <- struct{}{}
		}
	}()
	connect = func(ctx context.Context) (*dbus.Conn, error) {
		return dbus.NewConnection(func() (*godbus.Conn, error) {
			conn, err := godbus.Dial("unix:path="+path, godbus.WithContext(ctx))
			if err != nil {
				return nil, err
			}
			return conn, conn.Auth([]godbus.Auth{godbus.AuthExternal("0")})
		})
	}
	return connect, came
}

// TestHungSystemdDelaysNoOther: the start of a slice waits until its context ends. Meanwhile it
// blocks neither the engine's lock nor other slices.
func TestHungSystemdDelaysNoOther(t *testing.T) {
	connect, reached := hungSystemd(t)
	m := New(Config{Instance: "t", Driver: Systemd, DefaultParent: "berth_t.slice"}, nil)
	m.slices.connect = connect
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 3)
	for _, id := range []string{"a", "b"} {
		go func() { ended <- m.startSlice(ctx, m.podSlice(id)) }()
		<-reached // although the previous one hangs
	}
	if !m.mu.TryLock() {
		t.Fatal("the Manager is locked while systemd hangs")
	}
	m.mu.Unlock()
	// A call that needs all slices ends with its context, too.
	go func() {
		ended <- m.slices.do(ctx, allSlices, func(*dbus.Conn) error { return errors.New("it ran") })
	}()
	cancel()
	for range 3 {
		err := <-ended
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want that it was cancelled", err)
		}
	}
	if !m.slices.use.TryAcquire(allSlices) {
		t.Error("somebody who gave up holds the slices still")
	}
	late, end := context.WithCancel(t.Context())
	m.slices.use.Release(allSlices)
	end()
	if err := m.startSlice(late, m.podSlice("c")); err == nil || errors.Is(err, errs.Invalid) {
		t.Errorf("a call that has ended: %v", err)
	}
}
