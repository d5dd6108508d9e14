package sysnet

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// NftablesGeneration returns the number of the last change of any nftables rule in the network
// namespace of a socket of NETLINK_NETFILTER.
func (n *Netlink) NftablesGeneration() (uint32, error) {
	const newGenID = 1 // NFTA_GEN_ID
	replies, err := n.Do(NetlinkRequest{
		Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Payload: make([]byte, 4),
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
