package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"

	"github.com/berthrun/berth/internal/engine/native/cgroup"
	"github.com/berthrun/berth/internal/errs"
)

// A kubelet makes its pods' slices and stops them. For a sandbox whose request names
// none the engine does both: systemd keeps a slice that it started on its own for
// ever. Each call speaks to systemd on a connection of its own; pods of a kubelet
// need none.

// podSlice is the slice of a sandbox whose request names no parent.
func (e *Engine) podSlice(id string) string {
	return strings.TrimSuffix(e.cfg.DefaultParent, ".slice") + "-pod" + id + ".slice"
}

// startSlice starts the slice of one sandbox, and with it the one above.
func (e *Engine) startSlice(ctx context.Context, name string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return withSystemd(ctx, func(conn *dbus.Conn) error {
		done := make(chan string, 1)
		description := []dbus.Property{dbus.PropDescription("pod of berth " + e.cfg.Instance)}
		_, err := conn.StartTransientUnitContext(ctx, name, "replace", description, done)
		if isDBusError(err, "org.freedesktop.systemd1.UnitExists") {
			return nil
		}
		return ended(ctx, "start", name, done, err)
	})
}

// stopSlice stops the slice of one sandbox, and the one above when it was the last.
// Nil when there is none.
func (e *Engine) stopSlice(ctx context.Context, name string) error {
	dir, err := e.sliceDir(name)
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return withSystemd(ctx, func(conn *dbus.Conn) error {
		if err := stopUnit(ctx, conn, name); err != nil {
			return err
		}
		empty, err := withoutChildren(path.Dir(dir))
		if err != nil || !empty {
			return err
		}
		return stopUnit(ctx, conn, e.cfg.DefaultParent)
	})
}

// sliceDir is where a slice's cgroup is.
func (e *Engine) sliceDir(name string) (string, error) {
	below, err := cgroup.SlicePath(name)
	if err != nil {
		return "", err
	}
	paths := e.tree.Paths(below)
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

func withSystemd(ctx context.Context, do func(*dbus.Conn) error) error {
	conn, err := dbus.NewSystemdConnectionContext(ctx)
	if err != nil {
		return fmt.Errorf("cannot reach systemd: %w: %w", errs.Unavailable, err)
	}
	defer conn.Close()
	return do(conn)
}
