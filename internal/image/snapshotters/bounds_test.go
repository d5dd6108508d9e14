package snapshotters

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// hung is a snapshotter that answers no call but those that answers has.
type hung struct {
	snapshots.Snapshotter
	answers map[string]error
}

func (h hung) call(ctx context.Context, name string) error {
	if err, ok := h.answers[name]; ok {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func (h hung) Stat(ctx context.Context, _ string) (snapshots.Info, error) {
	return snapshots.Info{}, h.call(ctx, "Stat")
}

func (h hung) Prepare(ctx context.Context, _, _ string, _ ...snapshots.Opt) ([]mount.Mount, error) {
	return []mount.Mount{{Type: "bind"}}, h.call(ctx, "Prepare")
}

func (h hung) Mounts(ctx context.Context, _ string) ([]mount.Mount, error) {
	return nil, h.call(ctx, "Mounts")
}

func (h hung) Commit(ctx context.Context, _, _ string, _ ...snapshots.Opt) error {
	return h.call(ctx, "Commit")
}

func (h hung) Remove(ctx context.Context, _ string) error { return h.call(ctx, "Remove") }

func (h hung) Usage(ctx context.Context, _ string) (snapshots.Usage, error) {
	return snapshots.Usage{}, h.call(ctx, "Usage")
}

func (h hung) Walk(ctx context.Context, _ snapshots.WalkFunc, _ ...string) error {
	return h.call(ctx, "Walk")
}

// TestCallsHaveABound: what a request needs of a snapshotter that does not answer fails, though the request has no deadline.
func TestCallsHaveABound(t *testing.T) {
	add := func(ctx context.Context, s *Snapshotter) error {
		_, err := s.Add(ctx, Layer{Chain: "a"}, func(context.Context, []mount.Mount) error { return nil })
		return err
	}
	prepare := func(ctx context.Context, s *Snapshotter) error {
		_, err := s.Prepare(ctx, "c1", "a")
		return err
	}
	for _, test := range []struct {
		what    string
		answers map[string]error
		ask     func(context.Context, *Snapshotter) error
		within  time.Duration
	}{
		{"a layer", nil, add, callTimeout},
		{"a layer that is not there", map[string]error{"Stat": errdefs.ErrNotFound, "Remove": nil}, add, layerTimeout},
		{"a layer to commit", map[string]error{"Stat": errdefs.ErrNotFound, "Prepare": nil}, add, layerTimeout + callTimeout},
		{"a root filesystem", nil, prepare, callTimeout},
		{"a root filesystem that is there", map[string]error{"Prepare": errdefs.ErrAlreadyExists}, prepare, callTimeout},
		{"a size", nil, func(ctx context.Context, s *Snapshotter) error { _, _, err := s.Usage(ctx, "c1"); return err }, callTimeout},
		{"a list", nil, func(ctx context.Context, s *Snapshotter) error { return s.collect(ctx, &someUsers{}) }, callTimeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &Snapshotter{Name: "lazy", address: "/run/lazy.sock", remote: hung{answers: test.answers}, busy: map[string]int{}}
			begun := time.Now()
			err := test.ask(t.Context(), s)
			wantAway(t, test.what, "/run/lazy.sock", err)
			if took := time.Since(begun); took > test.within {
				t.Errorf("%s: it took %s", test.what, took)
			}
		})
	}
}

// wantAway wants the error of a snapshotter "lazy" that does not answer on a socket. It must not be taken for the end of
// the request.
func wantAway(t *testing.T, what, socket string, err error) {
	t.Helper()
	var away *image.AwayError
	if !errors.As(err, &away) || !errors.Is(err, errs.Unavailable) || errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "the snapshotter lazy does not answer on "+socket) {
		t.Errorf("%s: %v", what, err)
	}
}

// TestServerThatNeverAnswers: a process takes connections and sends nothing.
func TestServerThatNeverAnswers(t *testing.T) {
	dir, err := os.MkdirTemp("", "berth-hung-") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "s.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	set, err := New(Config{Addresses: map[string]string{"lazy": socket}, Root: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	s, err := set.Find("lazy")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // in place of the bound
	defer cancel()
	_, err = s.Prepare(ctx, "c1", "a")
	wantAway(t, "a root filesystem", socket, err)
}

// TestHungSnapshotterDelaysNoOther: the snapshots of the others are removed meanwhile.
func TestHungSnapshotterDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Set{byName: map[string]*Snapshotter{}, log: slog.New(slog.DiscardHandler)}
		remotes := map[string]*parents{}
		for _, name := range []string{"a", "b", "c"} {
			remotes[name] = &parents{of: map[string]string{"b/old": ""}}
			s.byName[name] = &Snapshotter{Name: name, prefix: "b/", remote: remotes[name], busy: map[string]int{}, wake: make(chan struct{}, 1)}
		}
		s.byName["hung"] = &Snapshotter{Name: "hung", prefix: "b/", remote: hung{}, busy: map[string]int{}, wake: make(chan struct{}, 1)}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.Run(ctx, &someUsers{})
		}()
		synctest.Wait()
		for name, remote := range remotes {
			if len(remote.of) > 0 {
				t.Errorf("%s still has %v", name, remote.of)
			}
			remote.of["b/later"] = ""
		}
		s.Wake()
		synctest.Wait()
		for name, remote := range remotes {
			if len(remote.of) > 0 {
				t.Errorf("after a wake %s has %v", name, remote.of)
			}
		}
		cancel()
		<-ended
	})
}
