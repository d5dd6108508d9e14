// Package network attaches sandboxes to networks: through the operator's CNI
// configuration (mode "cni") or through berth's own bridge (mode "builtin").
//
// Its callers make and remove the network namespaces. It records addresses, links and
// host ports before it takes them, so that Detach can undo a partly created attachment,
// before or after a restart.
package network

import (
	"context"
	"encoding/json"
	"net/netip"
)

// Attachment is a sandbox to attach and its requests. It is plain data and part of the
// sandbox's record.
type Attachment struct {
	SandboxID string `json:"sandboxID"`
	// NetNS is the path of the pinned network namespace, whose loopback is up.
	NetNS string `json:"netns"`
	// Name, Namespace and UID are the pod's.
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	UID       string `json:"uid"`
	Ports     []Port `json:"ports,omitempty"`
	// Annotations are the pod's; bandwidth limits are among them
	// (AnnotationIngress, AnnotationEgress).
	Annotations map[string]string `json:"annotations,omitempty"`
	// Addresses are those that the pod requests, at most one of each family. Of other
	// families it gets any.
	Addresses    []netip.Addr `json:"addresses,omitempty"`
	CgroupParent string       `json:"cgroupParent,omitempty"`
	// Privileged pods may send with addresses of others: a node of a cluster routes for
	// its own pods, and a pod that may change the host needs no forged packets.
	Privileged bool `json:"privileged,omitempty"`
	DNS        *DNS `json:"dns,omitempty"`
	// Handler is the runtime handler that the pod names, "" for the default one.
	Handler string `json:"handler,omitempty"`
}

// RecordID is the id under which an attachment's record is kept.
func (a *Attachment) RecordID() string { return a.SandboxID }

// Port maps a port of the host to one of the pod.
type Port struct {
	// Protocol is "tcp", "udp" or "sctp".
	Protocol      string `json:"protocol"`
	ContainerPort uint16 `json:"containerPort"`
	HostPort      uint16 `json:"hostPort"`
	// HostIP limits the mapping to one local address, "" for all.
	HostIP string `json:"hostIP,omitempty"`
}

// DNS is handed to plugins that have the dns capability.
type DNS struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

// Result is the outcome of Attach. It is part of the sandbox's record.
type Result struct {
	// IPs in order of preference: the first is the pod's primary address.
	IPs []netip.Addr `json:"ips"`
	// CNI is the plugins' result, for verbose status; nil with the built-in
	// network.
	CNI json.RawMessage `json:"cni,omitempty"`
}

// Network attaches and detaches sandboxes. All methods are safe for concurrent
// use; calls for one sandbox come one at a time.
type Network interface {
	// Attach connects the sandbox. It may hold resources even when it fails:
	// always Detach. A host port or an address that is taken is kind Exists and
	// names it; no addresses left is Exhausted; no network configured is
	// Unavailable; an address that the network does not have is Invalid, and one
	// where nobody can choose is Unsupported.
	Attach(ctx context.Context, att *Attachment) (*Result, error)
	// Detach releases all that Attach took. Nil when there is nothing, also when the
	// namespace is gone. att may come from a record before a restart. An address
	// whose link the kernel has not removed yet stays recorded, and is released in the
	// background.
	Detach(ctx context.Context, att *Attachment) error
	// Ready is nil when sandboxes can be attached, else the reason why not.
	Ready(ctx context.Context) error
	// GC releases all attachments whose sandbox is not in live.
	GC(ctx context.Context, live []string) error
	// SetPodCIDR takes the node's pod ranges from UpdateRuntimeConfig ("" or
	// a comma separated list). It never changes the network mode.
	SetPodCIDR(ctx context.Context, cidr string) error
	// Info is for people and for verbose status: mode, configuration in use.
	Info() map[string]string
	// Close ends background work; attachments stay. With nothing attached, it
	// removes what the network has made on the host.
	Close() error
}

// Adopter is a Network that takes over attachments which another runtime made.
type Adopter interface {
	Network
	// Adopt records an attachment that exists, so that Detach undoes it as the other runtime
	// would have. Nothing changes in att.NetNS. The result has the addresses of the sandbox.
	// Repeated, Adopt returns the same. Where nothing says how the sandbox was attached, it
	// records nothing, and the result may have addresses all the same.
	Adopt(ctx context.Context, att *Attachment) (*Result, error)
}

// Configured is a Network that follows a configuration which others write.
type Configured interface {
	Network
	// LoadedConfig is for verbose status: the configuration that is in use, in JSON's
	// terms, and the fault of the configurations, nil for none. There may be both.
	LoadedConfig() (config any, fault error)
}
