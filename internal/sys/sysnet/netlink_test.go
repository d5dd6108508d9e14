package sysnet

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

func TestNetlinkErrorHasTheReason(t *testing.T) {
	payload := binary.NativeEndian.AppendUint32(nil, ^uint32(unix.ENODEV)+1)
	payload = append(payload, make([]byte, unix.SizeofNlMsghdr)...)
	payload = binary.NativeEndian.AppendUint16(payload, 4+4)
	payload = binary.NativeEndian.AppendUint16(payload, unix.NLMSGERR_ATTR_MSG)
	payload = append(payload, "why\x00"...)
	err := netlinkError(3, unix.NLM_F_CAPPED|unix.NLM_F_ACK_TLVS, payload)
	if err == nil || err.Index != 3 || err.Reason != "why" || !errors.Is(err, unix.ENODEV) {
		t.Errorf("%+v, want ENODEV of request 3 with a reason", err)
	}
	if err := netlinkError(0, 0, make([]byte, 20)); err != nil {
		t.Errorf("an acknowledgement is read as %v", err)
	}
}

func FuzzNetlinkMessages(f *testing.F) {
	f.Add([]byte{20, 0, 0, 0, 2, 0, 0, 3, 1, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{16, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(_ *testing.T, datagram []byte) {
		_ = each(datagram, func(head netlinkHeader, payload []byte) {
			if head.kind == unix.NLMSG_ERROR {
				_ = netlinkError(0, head.flags, payload)
			}
			for _, value := range Attributes(payload) {
				_ = Attribute(value, 1)
			}
		})
	})
}

// TestListsAreReadCompletely: a list is read again until the kernel reports no change during the
// read.
func TestListsAreReadCompletely(t *testing.T) {
	reads := 0
	all, err := WholeList(func() ([]int, error) {
		if reads++; reads < 3 {
			return []int{1}, nl.ErrDumpInterrupted
		}
		return []int{1, 2}, nil
	})
	if err != nil || len(all) != 2 || reads != 3 {
		t.Errorf("%v, %v after %d reads", all, err, reads)
	}
	reads = 0
	if _, err := WholeList(func() ([]int, error) { reads++; return nil, nl.ErrDumpInterrupted }); !errors.Is(err, nl.ErrDumpInterrupted) || reads < 3 {
		t.Errorf("always: %v after %d reads", err, reads)
	}
}
