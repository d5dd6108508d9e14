package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"

	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/network/hostport"
	"github.com/berthrun/berth/internal/store"
)

// attachmentsDir, below Config.RootDir, has the records.
const attachmentsDir = "attachments"

// record is one attachment.
//
//	(none) --intent written--> adding --ADD--> attached --DEL asked--> deleting --DEL--> (none)
//	                              `-------------------------------------^
type record struct {
	Attachment network.Attachment `json:"attachment"`
	// Conf is the whole configuration that ADD was given.
	Conf json.RawMessage `json:"conf"`
	// Others are the configurations of further networks, in order: the sandbox has a link in
	// each.
	Others []json.RawMessage `json:"others,omitempty"`
	// Ranges are the pod ranges that ADD was given.
	Ranges []netip.Prefix `json:"ranges,omitempty"`
	// Result is that of an attachment that another runtime or a version before 0.8 made; see resultOf.
	Result *network.Result `json:"result,omitempty"`
	// Former is set for an attachment that another runtime made.
	Former *former `json:"former,omitempty"`
	// Deleting is true once Detach was called: then DEL is retried until it succeeds.
	Deleting bool `json:"deleting,omitempty"`
	// Fault is the error of the last DEL, for people.
	Fault string `json:"fault,omitempty"`
	// Partial is what versions before 0.8 have in the record of an ADD that is not complete; see partialOf.
	Partial map[int]json.RawMessage `json:"partial,omitempty"`
}

// former is how another runtime attached a sandbox. DEL gets what its ADD got.
type former struct {
	// CacheDir is that runtime's cache of results.
	CacheDir string `json:"cacheDir"`
	// Args and Capabilities are those of ADD, nil if they are not known. Then they are those
	// that berth itself would pass.
	Args         [][2]string    `json:"args,omitempty"`
	Capabilities map[string]any `json:"capabilities,omitempty"`
}

// confs are the configurations of all networks, in the order of their links.
func (r *record) confs() []json.RawMessage {
	return append([]json.RawMessage{r.Conf}, r.Others...)
}

// RecordID is the id under which the record is kept.
func (r *record) RecordID() string { return r.Attachment.SandboxID }

// Validate refuses a record that was not written by us.
func (r *record) Validate() error {
	if r.Attachment.SandboxID == "" || len(r.Conf) == 0 {
		return errors.New("an attachment without sandbox or configuration")
	}
	return nil
}

// Pending is an attachment whose last DEL has failed. It is repeated.
type Pending struct {
	SandboxID, Namespace, Name string
	// File is that of its record.
	File string
	// Fault is the error of the last DEL.
	Fault string
}

// ReadPending reads from the records below a network's Config.RootDir, whether or not the network is open, which
// attachments have such a DEL. It leaves out records that it cannot read.
func ReadPending(rootDir string) ([]Pending, error) {
	files, err := filepath.Glob(filepath.Join(rootDir, attachmentsDir, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("cannot list the network's attachments: %w", err)
	}
	var all []Pending
	for _, file := range files {
		rec, err := store.Read[record](file)
		if err != nil || !rec.Deleting || rec.Fault == "" {
			continue
		}
		all = append(all, Pending{SandboxID: rec.Attachment.SandboxID, Namespace: rec.Attachment.Namespace, Name: rec.Attachment.Name, File: file, Fault: rec.Fault})
	}
	return all, nil
}

// HasRecords reports whether there are attachments below a network's Config.RootDir.
func HasRecords(rootDir string) bool {
	files, err := filepath.Glob(filepath.Join(rootDir, attachmentsDir, "*.json"))
	return err == nil && len(files) > 0
}

// noteFault keeps the error of a DEL in the record of the sandbox.
func (n *Network) noteFault(sandbox string, fault error) {
	text := errs.Message(fault)
	if rec, err := n.records.Get(sandbox); err != nil || rec.Fault == text {
		return
	}
	if _, err := n.records.Update(sandbox, func(r *record) error { r.Fault = text; return nil }); err != nil {
		n.log.Warn("cannot write down that a CNI DEL has failed", "sandbox", sandbox, "error", err)
	}
}

// holder names the sandbox as the holder of its ports.
func (r *record) holder() hostport.Holder {
	return hostport.Holder{Sandbox: r.Attachment.SandboxID, Namespace: r.Attachment.Namespace, Name: r.Attachment.Name}
}

// goodConf is a configuration in use, as it was read last.
type goodConf struct {
	File string          `json:"file"`
	Conf json.RawMessage `json:"conf"`
}

// inUse is what a process had in use: if a file is invalid when the next one starts, its last
// valid content stays in use.
type inUse struct {
	Confs []goodConf `json:"confs"`
}

// added is what the plugins of a sandbox have returned. Its records are in Config.StateDir: what plugins undo by a result
// (links, rules) does not survive a reboot, and the addresses that do are released by the sandbox's id. libcni keeps the
// result of a complete ADD in its cache on disk too, for DEL.
type added struct {
	SandboxID string `json:"sandboxID"`
	// Partial has, while the ADD is not complete, the result of the last plugin that succeeded in each network, by its
	// index. DEL gets it: plugins undo only what they find in a result.
	Partial map[int]json.RawMessage `json:"partial,omitempty"`
	// Result is that of a complete ADD.
	Result *network.Result `json:"result,omitempty"`
}

// RecordID is the id under which the record is kept.
func (a *added) RecordID() string { return a.SandboxID }

// openResults reads what plugins have returned, and removes the records of sandboxes that have no attachment: an earlier
// process was killed before it removed them.
func (n *Network) openResults(quarantine string) error {
	var damaged []store.Quarantined
	var err error
	n.results, damaged, err = store.Open(store.Options[added]{Path: filepath.Join(n.cfg.StateDir, "results"), Quarantine: quarantine, Unsynced: true})
	if err != nil {
		return err
	}
	for _, q := range damaged {
		n.log.Warn("moved a damaged record of what CNI plugins returned to the quarantine; the DEL of its sandbox gets what the cache of results has",
			"file", q.Path, "error", q.Err)
	}
	var faults []error
	for _, id := range n.results.IDs() {
		if _, err := n.records.Get(id); errors.Is(err, errs.NotFound) {
			faults = append(faults, n.results.Delete(id))
		}
	}
	return errors.Join(faults...)
}

// resultOf returns what the ADD of a sandbox has returned, nil if it is not complete or a reboot has taken it.
func (n *Network) resultOf(rec *record) *network.Result {
	if rec.Result != nil {
		return rec.Result
	}
	if a, err := n.results.Get(rec.Attachment.SandboxID); err == nil {
		return a.Result
	}
	return nil
}

// partialOf returns the results for the DEL of a sandbox whose ADD is not complete, by the index of the network.
func (n *Network) partialOf(rec *record) map[int]json.RawMessage {
	if n.resultOf(rec) != nil {
		return nil
	}
	if a, err := n.results.Get(rec.Attachment.SandboxID); err == nil {
		return a.Partial
	}
	return rec.Partial
}

// keepResult changes what is kept of the results of a sandbox's ADD. It is for one caller at a time.
func (n *Network) keepResult(sandbox string, change func(*added)) error {
	return keep(n.results, sandbox, func(a *added) { a.SandboxID = sandbox; change(a) })
}

// keeper keeps the results of the plugins while an ADD runs.
type keeper struct {
	n       *Network
	sandbox string
	mu      sync.Mutex // networks are added at once
}

// of returns the context for the ADD to a network. The result of each of its plugins is kept, except one that a plugin
// passes on unchanged.
func (k *keeper) of(ctx context.Context, network int) context.Context {
	var last []byte
	return context.WithValue(ctx, resultKey{}, func(result []byte) error {
		if bytes.Equal(result, last) || !json.Valid(result) {
			return nil // an invalid one fails the ADD
		}
		last = result
		k.mu.Lock()
		defer k.mu.Unlock()
		err := k.n.keepResult(k.sandbox, func(a *added) {
			all := map[int]json.RawMessage{network: result}
			for i, other := range a.Partial {
				if i != network {
					all[i] = other
				}
			}
			a.Partial = all
		})
		if err != nil {
			return fmt.Errorf("cannot keep the result of a plugin for DEL: %w", err)
		}
		return nil
	})
}

// resultKey is the key of a context's function for the results of ADDs.
type resultKey struct{}

// resultKeeper passes the results of ADDs to the context's function.
type resultKeeper struct{ invoke.Exec }

// ExecPlugin implements invoke.Exec.
func (k resultKeeper) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	stdout, err := k.Exec.ExecPlugin(ctx, path, stdin, environ)
	if keep, ok := ctx.Value(resultKey{}).(func([]byte) error); ok && err == nil {
		err = keep(stdout)
	}
	return stdout, err
}
