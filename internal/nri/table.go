package nri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/ttrpc"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/nri/convert"
)

// Info is what berth shows of NRI.
type Info struct {
	Socket    string   `json:"socket,omitempty"`
	PluginDir string   `json:"pluginDir,omitempty"`
	Plugins   []Plugin `json:"plugins"`
	Warning   string   `json:"warning,omitempty"`
}

// Plugin is what berth shows of a plugin that is or was connected, or that Start has started in vain.
type Plugin struct {
	// Name is its index and its name: 10-device-injector.
	Name      string    `json:"name"`
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since"`
	// Calls are the events and synchronizations that it got, Errors those of them that failed.
	Calls  uint64 `json:"calls"`
	Errors uint64 `json:"errors"`
	// LastError is the newest of those, or why the plugin is not connected, with its event and time. A plugin that has
	// left between two events has no event.
	LastError string    `json:"lastError,omitempty"`
	LastEvent string    `json:"lastEvent,omitempty"`
	LastAt    time.Time `json:"lastAt,omitzero"`
}

// The bounds of what the table keeps: plugins that are gone, and failures whose plugin may still
// be asked for.
const (
	maxGone     = 16
	maxFailures = 16
)

// table knows the plugins. The library reports to it: calls and adjustments (adaptation.Metrics),
// connections (ttrpc.Handshaker) and registrations (intercept).
type table struct {
	log *slog.Logger

	mu      sync.Mutex
	entries map[string]*entry
	// newest is the connection that was accepted last. The library registers one plugin at a
	// time, so a registration belongs to it.
	newest *connection
	count  int
	// registering is the plugin that has registered last.
	registering string
	// unstarted are the errors of plugins that Start could not start, in their order, by their names without the index.
	unstarted map[string][]error
	// closing is true once the Host ends plugins.
	closing bool
	// failures are the newest failed calls.
	failures []failure
	// refused is what call keeps for RecordPluginInvocation.
	refused *refusal
	// fault is that of the first adjustment without a meaning since resetFault.
	fault error
}

type entry struct {
	Plugin
	conn *connection
	// failing is true when the last call has failed so that the library may disconnect the plugin.
	failing bool
}

type failure struct {
	plugin string
	err    error
}

func newTable(log *slog.Logger) *table { return &table{log: log, entries: map[string]*entry{}} }

func (t *table) active() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count > 0
}

func (t *table) plugins() []Plugin {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]Plugin, 0, len(t.entries))
	for _, e := range t.entries {
		all = append(all, e.Plugin)
	}
	slices.SortFunc(all, func(a, b Plugin) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// pluginOf returns the plugin whose call failed with an error, "" when it is not known any more.
func (t *table) pluginOf(err error) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range slices.Backward(t.failures) {
		if errors.Is(err, f.err) {
			return f.plugin
		}
	}
	return ""
}

// resetFault forgets the fault of an earlier CreateContainer.
func (t *table) resetFault() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fault = nil
}

// faultOfAdjustment returns the fault since resetFault, nil if there is none.
func (t *table) faultOfAdjustment() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.fault
}

// RecordPluginInvocation implements adaptation.Metrics. A plugin is connected once it was
// synchronized.
func (t *table) RecordPluginInvocation(name, event string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if kept := t.takeRefusal(event); err == nil {
		err = kept
	}
	e := t.entry(name)
	e.Calls++
	e.failing = isFatal(err)
	if event == "Synchronize" && err == nil && !e.Connected {
		e.Connected, e.Since = true, time.Now()
		t.log.Info("an NRI plugin is connected", "plugin", name)
	}
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	t.failures = append(t.failures, failure{name, err})
	t.failures = t.failures[max(0, len(t.failures)-maxFailures):]
	e.fail(event, err)
	t.logFailure(name, event, err)
}

func (t *table) logFailure(name, event string, err error) {
	t.log.Error("an NRI plugin has failed", "plugin", name, "event", event, "error", err)
}

// isFatal reports whether the library disconnects a plugin for the error of a call, unless the plugin has another policy.
func isFatal(err error) bool {
	return errors.Is(err, ttrpc.ErrClosed) || errors.Is(err, context.DeadlineExceeded)
}

func (e *entry) fail(event string, err error) {
	e.Errors++
	e.note(event, err)
}

func (e *entry) note(event string, err error) {
	e.LastEvent, e.LastError, e.LastAt = event, errs.Message(err), time.Now()
}

// The events of a plugin that is not connected yet.
const (
	register  = "RegisterPlugin"
	configure = "Configure"
)

// notConfigured keeps the error of a Configure. The library does not record that call.
func (t *table) notConfigured(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.entry(t.registering).note(configure, err)
	t.logFailure(t.registering, configure, err)
}

// unstartedPlugin keeps the library's error of a plugin that it could not start, until started asks for it.
func (t *table) unstartedPlugin(base string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.unstarted == nil {
		t.unstarted = map[string][]error{}
	}
	t.unstarted[base] = append(t.unstarted[base], err)
}

// started notes why plugins of the directory are not connected once Start has tried them all. registration is how long each
// of them had to register.
func (t *table) started(programs []string, registration time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range programs {
		known := t.entries[name]
		if known != nil && known.Connected {
			continue
		}
		_, base, _ := strings.Cut(name, "-")
		cause := errors.New("it is not connected")
		if left := t.unstarted[base]; len(left) > 0 {
			cause, t.unstarted[base] = left[0], left[1:]
		}
		event, err := configure, cause
		switch {
		case known != nil && known.LastError != "":
			continue // its call has failed
		case known == nil:
			event, err = register, fmt.Errorf("it has not registered (nri.plugin_registration_timeout is %v): %w", registration, cause)
		}
		t.entry(name).note(event, err)
		t.logFailure(name, event, err)
	}
	t.unstarted = nil
}

// close makes the end of connections one that berth wants.
func (t *table) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closing = true
}

// RecordPluginLatency implements adaptation.Metrics.
func (t *table) RecordPluginLatency(string, string, time.Duration) {}

// RecordPluginAdjustments implements adaptation.Metrics: it checks each plugin's own answer,
// since that of all together does not say whose a field is.
func (t *table) RecordPluginAdjustments(name, event string, adjust *api.ContainerAdjustment, _, _ int) {
	err := convert.Check(adjust)
	if err == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.entry(name).fail(event, err)
	if t.fault == nil {
		t.fault = fmt.Errorf("NRI plugin %q answered %s with an adjustment that has no meaning: %w", name, event, err)
	}
}

// UpdatePluginCount implements adaptation.Metrics.
func (t *table) UpdatePluginCount(count int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count = count
}

// entry returns the entry of a plugin. The caller has the lock.
func (t *table) entry(name string) *entry {
	e := t.entries[name]
	if e == nil {
		e = &entry{Plugin: Plugin{Name: name, Since: time.Now()}}
		t.entries[name] = e
	}
	return e
}

// Handshake implements ttrpc.Handshaker: it sees each connection of a plugin, and its end.
func (t *table) Handshake(_ context.Context, conn net.Conn) (net.Conn, any, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.newest = &connection{Conn: conn, table: t}
	return t.newest, nil, nil
}

// connection reports its end to the table.
type connection struct {
	net.Conn
	table *table
	// closed is true once it has ended. The table's lock guards it.
	closed bool
}

func (c *connection) Close() error {
	c.table.disconnected(c)
	return c.Conn.Close()
}

func (t *table) disconnected(c *connection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.closed = true
	for name, e := range t.entries {
		if e.conn != c || !e.Connected {
			continue
		}
		e.Connected, e.Since = false, time.Now()
		if t.closing {
			t.log.Info("an NRI plugin is disconnected: berth stops", "plugin", name)
			continue
		}
		if !e.failing {
			e.note("", errLeft)
		}
		t.log.Warn("an NRI plugin is disconnected", "plugin", name, "lastEvent", e.LastEvent, "lastError", e.LastError)
	}
	t.forgetGone()
}

// errLeft is why a plugin is disconnected that berth has not disconnected. A call that waits for its answer fails a moment
// later, and has the last word.
var errLeft = errors.New("the plugin has ended, has closed its connection, or has sent what is no message of NRI")

// forgetGone keeps the list short on a node whose plugins come and go under new names.
func (t *table) forgetGone() {
	var gone []*entry
	for _, e := range t.entries {
		if !e.Connected && (e.conn == nil || e.conn.closed) {
			gone = append(gone, e)
		}
	}
	slices.SortFunc(gone, func(a, b *entry) int { return b.Since.Compare(a.Since) })
	for _, e := range gone[min(maxGone, len(gone)):] {
		delete(t.entries, e.Name)
	}
}

// intercept sees the calls that plugins make. A registration joins a name and a connection.
func (t *table) intercept(ctx context.Context, unmarshal ttrpc.Unmarshaler, _ *ttrpc.UnaryServerInfo, method ttrpc.Method) (any, error) {
	return method(ctx, func(request any) error {
		err := unmarshal(request)
		if register, ok := request.(*api.RegisterPluginRequest); ok && err == nil {
			t.registered(register.GetPluginIdx() + "-" + register.GetPluginName())
		}
		return err
	})
}

func (t *table) registered(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.registering = name
	if e := t.entry(name); e.conn == nil || e.conn.closed {
		e.conn = t.newest
	}
}
