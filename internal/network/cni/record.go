package cni

import (
	"encoding/json"
	"errors"
	"net/netip"

	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/network/hostport"
)

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
	// Result is what ADD returned; nil until then.
	Result *network.Result `json:"result,omitempty"`
	// Former is set for an attachment that another runtime made.
	Former *former `json:"former,omitempty"`
	// Deleting is true once Detach was called: then DEL is retried until it succeeds.
	Deleting bool `json:"deleting,omitempty"`
	// Partial has, while ADD is not complete, the result of the last plugin that succeeded in each
	// network, by its index. DEL gets it: plugins undo what they find in a result only.
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
