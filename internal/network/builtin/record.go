package builtin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/network/hostport"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// attachmentsDir is the directory of the records, below Config.StateDir.
const attachmentsDir = "attachments"

// record is one attachment, written before anything of it exists.
//
//	(none) --Attach--> attached --Detach--> released --link gone--> (none)
//
// A released attachment keeps its addresses until the kernel has removed its link, so
// that two sandboxes never answer for one address. Its host ports are free.
type record struct {
	Sandbox   string `json:"sandbox"`
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	BootID    string `json:"bootID"`
	// NetNS is "" when the record was lost and adoptLinks made it from the link.
	NetNS string `json:"netns"`
	// Link is the host's end of the pair.
	Link string `json:"link"`
	// Addrs has one address of each subnet, IPv4 first.
	Addrs []netip.Prefix `json:"addrs"`
	Ports []network.Port `json:"ports,omitempty"`
	// Ingress and Egress limit what the pod receives and sends, in bits per second, 0 for
	// no limit.
	Ingress uint64 `json:"ingress,omitempty"`
	Egress  uint64 `json:"egress,omitempty"`
	// Checked: the sources of its frames are checked. It is false in records of older
	// berths, whose pods may rely on it.
	Checked  bool `json:"checked,omitempty"`
	Released bool `json:"released,omitempty"`
}

// RecordID is the id under which the record is kept.
func (r *record) RecordID() string { return r.Sandbox }

// Validate refuses a record that was not written by us.
func (r *record) Validate() error {
	switch {
	case r.Sandbox == "" || r.Link == "":
		return errors.New("an attachment without sandbox or link")
	case len(r.Addrs) == 0:
		return errors.New("an attachment without addresses")
	}
	return nil
}

// holder names the sandbox as the holder of its ports.
func (r *record) holder() hostport.Holder {
	return hostport.Holder{Sandbox: r.Sandbox, Namespace: r.Namespace, Name: r.Name}
}

// families are those that the sandbox has addresses of.
func (r *record) families() hostport.Families {
	return hostport.Families{V4: r.addr(true).IsValid(), V6: r.addr(false).IsValid()}
}

// sockets are what the sandbox holds on the host.
func (r *record) sockets() []hostport.Socket {
	var all []hostport.Socket
	for _, p := range r.Ports {
		all = append(all, hostport.Sockets(p, r.families())...)
	}
	return all
}

func (r *record) result() *network.Result {
	res := &network.Result{}
	for _, p := range r.Addrs {
		res.IPs = append(res.IPs, p.Addr())
	}
	return res
}

// addr returns the address of one family; the zero Addr when there is none.
func (r *record) addr(v4 bool) netip.Addr {
	for _, p := range r.Addrs {
		if p.Addr().Is4() == v4 {
			return p.Addr()
		}
	}
	return netip.Addr{}
}

// Attached is what an attachment has on the host.
type Attached struct {
	Sandbox, Link string
	Addrs         []netip.Addr
}

// ReadAttached reads the records of attachments below a StateDir, of a berth that may run or not. It
// changes nothing. A record that cannot be read is an error; none is no error.
func ReadAttached(stateDir string) ([]Attached, error) {
	dir := filepath.Join(stateDir, attachmentsDir)
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, errs.IgnoreNotExist(err)
	}
	var all []Attached
	for _, file := range files {
		if filepath.Ext(file.Name()) != ".json" || strings.HasPrefix(file.Name(), sysfile.TempPrefix) {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, file.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue // released meanwhile
		}
		var read struct{ Record record }
		if err == nil {
			err = json.Unmarshal(data, &read)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read the attachment %s: %w", file.Name(), err)
		}
		a := Attached{Sandbox: read.Record.Sandbox, Link: read.Record.Link}
		for _, p := range read.Record.Addrs {
			a.Addrs = append(a.Addrs, p.Addr())
		}
		all = append(all, a)
	}
	return all, nil
}

// subnetChoice is the record of the chosen subnets, for the next start.
type subnetChoice struct {
	Subnets []netip.Prefix `json:"subnets"`
	// Next are to be used as soon as nothing is attached: the kubelet's pod range
	// that came too late.
	Next []netip.Prefix `json:"next,omitempty"`
	// PodCIDR is what the kubelet has sent last: it does so once, and not again when only berth restarts.
	PodCIDR []netip.Prefix `json:"podCIDR,omitempty"`
	// Own: berth or its configuration has chosen Subnets, and no kubelet. It is false in records of older berths.
	Own bool `json:"own,omitempty"`
}

// sent returns the subnets that the kubelet has sent, none if it has sent none. instance is that of the network.
func (c *subnetChoice) sent(instance string) []netip.Prefix {
	if len(c.PodCIDR) > 0 {
		return c.PodCIDR
	}
	// An older berth has not written down where its subnets came from. It always tried the same one first.
	first, err := chooseSubnets(instance, nil, false)
	if c.Own || err != nil || slices.Contains(c.Subnets, first[0]) {
		return nil
	}
	return c.Subnets
}

// choiceID is the id of the one subnetChoice.
const choiceID = "chosen"
