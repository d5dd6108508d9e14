package podcgroup

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
	"golang.org/x/sync/semaphore"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// A kubelet starts and stops the slices of its pods. For a sandbox whose request names no
// slice the Manager does both, because systemd never stops a slice that it started on its
// own. Each call has its own connection to systemd. A systemd that hangs delays these calls
// only, and each for no longer than its context.

// podSlice is the slice of a sandbox whose request names no parent.
func (m *Manager) podSlice(id string) string {
	return strings.TrimSuffix(m.cfg.DefaultParent, ".slice") + "-pod" + id + ".slice"
}

// systemdSlices connects to systemd.
type systemdSlices struct {
	connect func(context.Context) (*dbus.Conn, error)
	// use has one unit for each call that works on a pod's slice, and all units for a call
	// that stops the slice above: no pod's slice may start below it meanwhile.
	use *semaphore.Weighted
}

// allSlices is the whole of systemdSlices.use.
const allSlices = math.MaxInt64

func newSlices() systemdSlices {
	return systemdSlices{connect: dbus.NewSystemdConnectionContext, use: semaphore.NewWeighted(allSlices)}
}

// do runs fn with its own connection, and with share units of use.
func (s systemdSlices) do(ctx context.Context, share int64, fn func(*dbus.Conn) error) error {
	if err := s.use.Acquire(ctx, share); err != nil {
		return fmt.Errorf("cannot wait for systemd, which works on other slices: %w", err)
	}
	defer s.use.Release(share)
	conn, err := s.connect(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = errors.Join(ctx.Err(), err) // the connection was closed for that
		}
		return fmt.Errorf("cannot reach systemd: %w: %w", errs.Unavailable, err)
	}
	defer conn.Close()
	return fn(conn)
}

// startSlice starts the slice of one sandbox, and with it the one above.
func (m *Manager) startSlice(ctx context.Context, name string) error {
	return m.slices.do(ctx, 1, func(conn *dbus.Conn) error {
		done := make(chan string, 1)
		description := []dbus.Property{dbus.PropDescription("pod of berth " + m.cfg.Instance)}
		_, err := conn.StartTransientUnitContext(ctx, name, "replace", description, done)
		if isDBusError(err, "org.freedesktop.systemd1.UnitExists") {
			return nil
		}
		return ended(ctx, "start", name, done, err)
	})
}

// removeSlice stops the slice of one sandbox, and the one above when it was the last. Nil when there is
// none. systemd ends all processes in a slice that it stops: as with cgroupfs, those of a container that
// runs are spared, and the error is of kind State.
func (m *Manager) removeSlice(ctx context.Context, id string) error {
	name := m.podSlice(id)
	dir, err := m.sliceDir(name)
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	below, err := cgroup.SlicePath(name)
	if err != nil {
		return err
	}
	group := m.tree.Paths(below)
	if !leftByAll(ctx, group) {
		if err := m.checkLost(ctx, id, name, group); err != nil {
			return err
		}
	}
	return m.stopSlice(ctx, name, dir)
}

// leftByAll waits, for no longer than busyTimeout, until killed processes have left a cgroup.
func leftByAll(ctx context.Context, group cgroup.Paths) bool {
	waiting, stop := context.WithTimeout(ctx, busyTimeout)
	defer stop()
	for {
		if pids, err := group.Pids(); err == nil && len(pids) == 0 {
			return true
		}
		select {
		case <-waiting.Done():
			return false
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// stopSlice stops a slice, whose cgroup is dir.
func (m *Manager) stopSlice(ctx context.Context, name, dir string) error {
	if err := m.slices.do(ctx, 1, func(conn *dbus.Conn) error { return stopUnit(ctx, conn, name) }); err != nil {
		return err
	}
	above := path.Dir(dir)
	if empty, err := withoutChildren(above); err != nil || !empty {
		return err
	}
	return m.slices.do(ctx, allSlices, func(conn *dbus.Conn) error {
		if empty, err := withoutChildren(above); err != nil || !empty {
			return err // another pod has come
		}
		return stopUnit(ctx, conn, m.cfg.DefaultParent)
	})
}

// sliceDir is where a slice's cgroup is.
func (m *Manager) sliceDir(name string) (string, error) {
	below, err := cgroup.SlicePath(name)
	if err != nil {
		return "", err
	}
	paths := m.tree.Paths(below)
	if dir, ok := paths["name=systemd"]; ok {
		return dir, nil
	}
	return paths[""], nil
}

func withoutChildren(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // stopped already
	}
	if err != nil {
		return false, fmt.Errorf("cannot look for slices: %w", err)
	}
	for _, entry := range entries {
		if entry.IsDir() {
			return false, nil
		}
	}
	return true, nil
}

func stopUnit(ctx context.Context, conn *dbus.Conn, name string) error {
	done := make(chan string, 1)
	_, err := conn.StopUnitContext(ctx, name, "replace", done)
	if isDBusError(err, "org.freedesktop.systemd1.NoSuchUnit") {
		return nil
	}
	return ended(ctx, "stop", name, done, err)
}

// ended waits for the job that a call has queued.
func ended(ctx context.Context, verb, unit string, done <-chan string, err error) error {
	if err == nil {
		select {
		case result := <-done:
			if result == "done" {
				return nil
			}
			err = fmt.Errorf("systemd says %q", result)
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	return fmt.Errorf("cannot %s %s: %w", verb, unit, err)
}

func isDBusError(err error, name string) bool {
	var dbusErr godbus.Error
	return errors.As(err, &dbusErr) && dbusErr.Name == name
}
