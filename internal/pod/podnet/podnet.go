// Package podnet attaches sandboxes to the network and detaches them.
//
// It owns the records of attachments, which lie on disk and outlive a reboot, and the gate
// that blocks new attachments while the network collects its garbage. It knows no job and no
// state of a sandbox.
package podnet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/keyed"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/pod/call"
	"github.com/berthrun/berth/internal/pod/record"
	"github.com/berthrun/berth/internal/store"
)

// Attachments are the connections of sandboxes to their network. All methods are safe for
// concurrent use.
type Attachments struct {
	network network.Network
	records Records
	calls   *keyed.Calls
	log     *slog.Logger
	// gate is closed while the network collects its garbage.
	gate gate
}

// Options configure Attachments.
type Options struct {
	Network network.Network
	Calls   *keyed.Calls
	Log     *slog.Logger
}

// Records are the attachments that daemons have made.
type Records struct {
	// open reads them, once.
	open func() (*store.Dir[network.Attachment], error)
}

// OpenRecords returns the records of attachments in dir, which is on disk, that earlier daemons made. Those who list
// pods do not need them: the first call of an Attachments reads them.
func OpenRecords(pods *record.Store, dir string) Records {
	return Records{sync.OnceValues(func() (*store.Dir[network.Attachment], error) {
		// An attachment that a loss of power has taken is found by the network: it has records of its own.
		return record.OpenDir(pods, store.Options[network.Attachment]{Path: dir, Unsynced: true})
	})}
}

// New returns the Attachments of these records.
func New(records Records, opts Options) *Attachments {
	return &Attachments{network: opts.Network, records: records, calls: opts.Calls, log: opts.Log}
}

// IDs returns the ids of sandboxes that have an attachment, in no order.
func (a *Attachments) IDs() ([]string, error) {
	records, err := a.records.open()
	if err != nil {
		return nil, err
	}
	return records.IDs(), nil
}

// create writes the record of an attachment. Kind Exists when there is one.
func (a *Attachments) create(att *network.Attachment) error {
	records, err := a.records.open()
	if err != nil {
		return err
	}
	return records.Create(att.SandboxID, att)
}

// Attach connects a sandbox to its network and returns its addresses, nil for a sandbox on
// the host's network. The attachment is written to disk first, where it outlives a reboot.
// stage publishes each stage and what it waits for.
func (a *Attachments) Attach(ctx context.Context, stage func(name, waitsFor string), rec *record.Sandbox, sb *engine.Sandbox) (*network.Result, error) {
	if sb.NetNS == "" {
		return nil, nil //nolint:nilnil // the host's network needs no attachment
	}
	att, err := attachment(rec, sb)
	if err != nil {
		return nil, err
	}
	if err := a.create(att); err != nil {
		return nil, err
	}
	stage("wait for the network", "its garbage collection")
	if err := a.gate.pass(ctx); err != nil {
		return nil, fmt.Errorf("cannot attach sandbox to its network: %w", err)
	}
	stage("attach network", "the network's plugins")
	result, err := call.Get(ctx, a.calls, rec.ID, "attach sandbox to its network", func(ctx context.Context) (*network.Result, error) {
		return a.network.Attach(ctx, att)
	})
	if err != nil {
		// The words that tools and people look for.
		return nil, fmt.Errorf("failed to setup network for sandbox %q: %w", rec.ID, err)
	}
	return result, nil
}

// Adopt records the attachment of a sandbox that another runtime made, so that Detach undoes
// it, and returns its addresses, nil for a sandbox on the host's network. It can be repeated.
func (a *Attachments) Adopt(ctx context.Context, rec *record.Sandbox, sb *engine.Sandbox) (*network.Result, error) {
	adopter, can := a.network.(network.Adopter)
	if !can || onHostNetwork(rec.Config.Get()) {
		return nil, nil //nolint:nilnil // there is nothing to undo
	}
	att := attachmentOf(rec, sb)
	if err := a.create(att); err != nil && !errors.Is(err, errs.Exists) {
		return nil, err
	}
	return call.Get(ctx, a.calls, rec.ID, "adopt the sandbox's network", func(ctx context.Context) (*network.Result, error) {
		return adopter.Adopt(ctx, att)
	})
}

// Detach undoes Attach and removes the record of the attachment. Nil when there is none.
func (a *Attachments) Detach(ctx context.Context, id string) error {
	records, err := a.records.open()
	if err != nil {
		return err
	}
	att, err := records.Get(id)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	if err := call.Run(ctx, a.calls, id, "detach sandbox from its network", func(ctx context.Context) error {
		return a.network.Detach(ctx, att)
	}); err != nil {
		return err
	}
	return records.Delete(id)
}

// collectTime bounds the network's garbage collection: new attachments wait for it.
const collectTime = 30 * time.Second

// CollectGarbage passes the live attachments to the network, which removes all others. An
// attachment that is written before the list is taken is in it; a later one waits at the
// gate.
func (a *Attachments) CollectGarbage(ctx context.Context) {
	open := a.gate.close()
	defer open()
	ctx, cancel := context.WithTimeout(ctx, collectTime)
	defer cancel()
	err := call.Run(ctx, a.calls, "network", "collect the network's garbage", func(ctx context.Context) error {
		live, err := a.IDs()
		if err != nil {
			return err // nothing is garbage that may be live
		}
		return a.network.GC(ctx, live)
	})
	if err != nil && ctx.Err() == nil {
		a.log.Error("cannot collect the garbage of the network", "error", err)
	}
}
