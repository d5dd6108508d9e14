package builtin

import (
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A token bucket on the host's end of a pod's link limits what the pod receives. What the pod
// sends arrives at that end, which has no queue for it, so it passes through a link of kind
// ifb, which has one. A pod can change neither.

// shaperPrefix starts the names of these links.
const shaperPrefix = "ifb-"

func shaperName(link string) string { return shaperPrefix + strings.TrimPrefix(link, linkPrefix) }

const (
	// burstShare of a second's data may pass at once, and no less than minBurst, which
	// holds the largest packet.
	burstShare = 10
	minBurst   = 128 << 10
	// queueShare of a second's data may wait.
	queueShare = 40
)

// shape limits the bandwidth of a link that was just made.
func (h *host) shape(link string, ingress, egress uint64, mtu int) error {
	if ingress == 0 && egress == 0 {
		return nil
	}
	if err := h.limit(link, ingress, egress, mtu); err != nil {
		return fmt.Errorf("cannot limit the pod's bandwidth (the kernel needs sch_tbf, sch_ingress, cls_u32, act_mirred and ifb): %w", err)
	}
	return nil
}

func (h *host) limit(link string, ingress, egress uint64, mtu int) error {
	port, err := h.handle.LinkByName(link)
	if err != nil {
		return err
	}
	if ingress > 0 {
		if err := h.handle.QdiscAdd(bucket(port, ingress)); err != nil {
			return fmt.Errorf("ingress: %w", err)
		}
	}
	if egress == 0 {
		return nil
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Flags = shaperName(link), mtu, unix.IFF_UP
	if err := h.handle.LinkAdd(&netlink.Ifb{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("egress: cannot make link %s: %w", attrs.Name, err)
	}
	shaper, err := h.handle.LinkByName(attrs.Name)
	if err != nil {
		return err
	}
	if err := h.handle.LinkSetUp(shaper); err != nil {
		return fmt.Errorf("egress: %w", err)
	}
	if err := h.handle.QdiscAdd(bucket(shaper, egress)); err != nil {
		return fmt.Errorf("egress: %w", err)
	}
	if err := h.handle.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: port.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS,
	}}); err != nil {
		return fmt.Errorf("egress: %w", err)
	}
	if err := h.handle.FilterAdd(&netlink.U32{ // without a selector it matches all
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: port.Attrs().Index, Parent: netlink.MakeHandle(0xffff, 0), Priority: 1, Protocol: unix.ETH_P_ALL,
		},
		Actions: []netlink.Action{netlink.NewMirredAction(shaper.Attrs().Index)},
	}); err != nil {
		return fmt.Errorf("egress: %w", err)
	}
	return nil
}

// bucket is a queue that passes rate bits a second.
func bucket(link netlink.Link, rate uint64) *netlink.Tbf {
	bytes := max(rate/8, 1)
	burst := uint32(min(max(bytes/burstShare, minBurst), 1<<30))
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       bytes,
		Buffer:     netlink.Xmittime(bytes, burst),
		Limit:      burst + uint32(min(bytes/queueShare, 1<<30)),
	}
}
