package sysnet

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// NftablesType is the type of a netlink message about nftables (unix.NFT_MSG_...).
func NftablesType(message uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | message }

// NetfilterHeader is the header of a netlink message of netfilter, for a family (unix.NFPROTO_...).
func NetfilterHeader(family byte) []byte { return []byte{family, unix.NFNETLINK_V0, 0, 0} }

// ChangeNftables makes all changes of nftables, or none, in the network namespace of a socket of NETLINK_NETFILTER.
// The error is a *NetlinkError for a change that the kernel refuses. Its Index is -1 where the kernel refuses them all.
func (n *Netlink) ChangeNftables(changes ...NetlinkRequest) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	// The frame gets no acknowledgement: older kernels send none.
	frame := NetlinkRequest{Type: unix.NFNL_MSG_BATCH_BEGIN, Payload: []byte{0, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}}
	out := n.appendRequest(nil, frame, 0)
	first := n.seq + 1
	for _, c := range changes {
		out = n.appendRequest(out, c, unix.NLM_F_ACK)
	}
	frame.Type = unix.NFNL_MSG_BATCH_END
	out = n.appendRequest(out, frame, 0)
	n.makeRoom(len(out), len(changes))
	if err := n.send(out); err != nil {
		return err
	}
	if _, err := n.receive(first, len(changes), true); err != nil {
		return fmt.Errorf("cannot change nftables: %w", err)
	}
	return nil
}

const (
	// answerSize is what the kernel counts for an acknowledgement in the buffer of a socket, in bytes.
	answerSize = 2 << 10
	// usualBuffer is how much fits into the buffers of a socket, with the kernel's defaults.
	usualBuffer = 128 << 10
)

// makeRoom enlarges the buffers of the socket. The kernel makes all changes of a datagram, and queues their answers, before
// the first one is received; what does not fit is lost. Without the right to it, the buffers stay as they are.
func (n *Netlink) makeRoom(size, answers int) {
	if size > usualBuffer {
		_ = unix.SetsockoptInt(n.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 2*size)
	}
	if room := answers * answerSize; room > usualBuffer {
		_ = unix.SetsockoptInt(n.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room)
	}
}

// NftablesGeneration returns the number of the last change of any nftables rule in the network
// namespace of a socket of NETLINK_NETFILTER.
func (n *Netlink) NftablesGeneration() (uint32, error) {
	const newGenID = 1 // NFTA_GEN_ID
	replies, err := n.Do(NetlinkRequest{
		Type: NftablesType(unix.NFT_MSG_GETGEN), Payload: NetfilterHeader(0),
	})
	if err != nil {
		return 0, err
	}
	value := Attribute(replies[0][min(len(replies[0]), 4):], newGenID)
	if len(value) != 4 {
		return 0, errors.New("the kernel sent no generation")
	}
	return binary.BigEndian.Uint32(value), nil
}
