package machine

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// systemd is the service manager of this machine.
type systemd struct {
	mu   sync.Mutex
	conn *dbus.Conn
}

// connect connects at the first use: to systemd itself, which needs no bus.
func (s *systemd) connect(ctx context.Context) (*dbus.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil && s.conn.Connected() {
		return s.conn, nil
	}
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return nil, fmt.Errorf("systemd does not run here: %w", errs.Unsupported)
	}
	// The connection outlives the call that opens it.
	conn, err := dbus.NewSystemdConnectionContext(context.WithoutCancel(ctx))
	if err != nil {
		if conn, err = dbus.NewSystemConnectionContext(context.WithoutCancel(ctx)); err != nil {
			return nil, fmt.Errorf("cannot connect to systemd: %w: %w", errs.Unavailable, err)
		}
	}
	s.conn = conn
	return conn, nil
}

func (s *systemd) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		s.conn.Close()
		s.conn = nil
	}
}

// State queries systemd. It reads from disk whether a unit is enabled: systemd's own answer is as
// old as its last reload.
func (s *systemd) State(ctx context.Context, name string) (provision.UnitState, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return provision.UnitState{}, err
	}
	props, err := conn.GetUnitPropertiesContext(ctx, name)
	if err != nil {
		return provision.UnitState{}, fmt.Errorf("cannot read the state of %s from systemd: %w", name, err)
	}
	state := provision.UnitState{
		Load: text(props["LoadState"]), Active: text(props["ActiveState"]), Sub: text(props["SubState"]),
	}
	state.NeedReload, _ = props["NeedDaemonReload"].(bool)
	if since, ok := props["ActiveEnterTimestamp"].(uint64); ok && since > 0 && state.Active == "active" {
		state.Since = time.UnixMicro(int64(since))
	}
	if strings.HasSuffix(name, ".service") {
		if p, err := conn.GetUnitTypePropertyContext(ctx, name, "Service", "Result"); err == nil {
			state.Result = text(p.Value.Value())
		}
	}
	unitFiles, err := conn.ListUnitFilesByPatternsContext(ctx, nil, []string{name})
	if err != nil {
		return state, fmt.Errorf("cannot read whether %s is enabled: %w", name, err)
	}
	for _, f := range unitFiles {
		state.Enabled = f.Type
	}
	return state, nil
}

func text(value any) string {
	s, _ := value.(string)
	return s
}

// Reload is daemon-reload.
func (s *systemd) Reload(ctx context.Context) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	if err := conn.ReloadContext(ctx); err != nil {
		return fmt.Errorf("cannot reload systemd: %w", err)
	}
	return nil
}

// Enable makes the links of [Install].
func (s *systemd) Enable(ctx context.Context, name string) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	if _, _, err := conn.EnableUnitFilesContext(ctx, []string{name}, false, true); err != nil {
		return fmt.Errorf("cannot enable %s: %w", name, err)
	}
	return nil
}

// Disable removes them.
func (s *systemd) Disable(ctx context.Context, name string) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	if _, err := conn.DisableUnitFilesContext(ctx, []string{name}, false); err != nil {
		return fmt.Errorf("cannot disable %s: %w", name, err)
	}
	return nil
}

// Mask links the unit to /dev/null.
func (s *systemd) Mask(ctx context.Context, name string) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	if _, err := conn.MaskUnitFilesContext(ctx, []string{name}, false, false); err != nil {
		return fmt.Errorf("cannot mask %s: %w", name, err)
	}
	return nil
}

// Unmask removes that link, and the one that lasts until the next boot.
func (s *systemd) Unmask(ctx context.Context, name string) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	for _, untilBoot := range []bool{false, true} {
		if _, err := conn.UnmaskUnitFilesContext(ctx, []string{name}, untilBoot); err != nil {
			return fmt.Errorf("cannot unmask %s: %w", name, err)
		}
	}
	return nil
}

// Start starts a unit, also one that has failed too often.
func (s *systemd) Start(ctx context.Context, name string) error {
	return s.job(ctx, "start", name, (*dbus.Conn).StartUnitContext)
}

// Stop stops a unit.
func (s *systemd) Stop(ctx context.Context, name string) error {
	return s.job(ctx, "stop", name, (*dbus.Conn).StopUnitContext)
}

// Restart restarts a unit.
func (s *systemd) Restart(ctx context.Context, name string) error {
	return s.job(ctx, "restart", name, (*dbus.Conn).RestartUnitContext)
}

// ReloadUnit reloads a unit.
func (s *systemd) ReloadUnit(ctx context.Context, name string) error {
	return s.job(ctx, "reload", name, (*dbus.Conn).ReloadUnitContext)
}

type jobFunc func(c *dbus.Conn, ctx context.Context, name, mode string, done chan<- string) (int, error)

// job runs a job of systemd and waits for its result.
func (s *systemd) job(ctx context.Context, verb, name string, f jobFunc) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	if verb == "start" || verb == "restart" {
		// A unit of a package, or of somebody else, may have got a file or a drop-in from a task of files.
		if state, err := s.State(ctx, name); err != nil {
			return err
		} else if state.NeedReload {
			if err := s.Reload(ctx); err != nil {
				return err
			}
		}
		// This is an error for a unit that systemd does not know, or that has not failed.
		_ = conn.ResetFailedUnitContext(ctx, name)
	}
	done := make(chan string, 1)
	if _, err := f(conn, ctx, name, "replace", done); err != nil {
		return fmt.Errorf("cannot %s %s: %w", verb, name, err)
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("cannot %s %s: %w", verb, name, ctx.Err())
	case result := <-done:
		if result == "done" || result == "skipped" {
			return nil
		}
		return s.failure(ctx, verb, name, result)
	}
}

// failure describes a unit that failed, with the end of its log.
func (s *systemd) failure(ctx context.Context, verb, name, result string) error {
	state, err := s.State(ctx, name)
	why := result
	if err == nil {
		why = fmt.Sprintf("job %s, unit is %s (%s), result %s", result, state.Active, state.Sub, state.Result)
	}
	log, _ := run(ctx, provision.Command{ // the log only helps; the unit's failure is the error
		Args: []string{"journalctl", "--no-pager", "-q", "-o", "cat", "-n", "5", "-u", name},
	})
	tail := strings.TrimSpace(string(log))
	if tail != "" {
		tail = "\n    " + strings.ReplaceAll(tail, "\n", "\n    ")
	}
	return fmt.Errorf("cannot %s %s: %s; its log: journalctl -u %s%s", verb, name, why, name, tail)
}
