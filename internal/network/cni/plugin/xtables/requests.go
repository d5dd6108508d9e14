package xtables

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/sys/sysnet"
)

// errUnknown is that this package cannot write a rule.
var errUnknown = errors.New("a rule of an unknown form")

// base is what makes a chain a built-in one.
type base struct {
	hook     uint32
	priority int32
	kind     string
}

// builtins returns the built-in chains of a table, by name.
func builtins(table string) map[string]base {
	switch table {
	case "nat":
		return map[string]base{
			"PREROUTING":  {unix.NF_INET_PRE_ROUTING, -100, table},
			"INPUT":       {unix.NF_INET_LOCAL_IN, 100, table},
			"OUTPUT":      {unix.NF_INET_LOCAL_OUT, -100, table},
			"POSTROUTING": {unix.NF_INET_POST_ROUTING, 100, table},
		}
	case "filter":
		return map[string]base{
			"INPUT":   {unix.NF_INET_LOCAL_IN, 0, table},
			"FORWARD": {unix.NF_INET_FORWARD, 0, table},
			"OUTPUT":  {unix.NF_INET_LOCAL_OUT, 0, table},
		}
	}
	return nil
}

// requests returns the requests of a transaction. As iptables does, it adds the table, and a built-in chain before the
// first rule in it.
func (p place) requests(socket *sysnet.Netlink, commands []Command) ([]sysnet.NetlinkRequest, error) {
	all := []sysnet.NetlinkRequest{p.request(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, attribute(unix.NFTA_TABLE_NAME, text(p.table)))}
	there := map[string]bool{}
	for _, c := range commands {
		if b, ok := builtins(p.table)[c.chain]; ok && !there[c.chain] {
			exists, err := p.exists(socket, c.chain)
			if err != nil {
				return nil, err
			}
			if !exists {
				all = append(all, p.addChain(c.chain, &b))
			}
			there[c.chain] = true
		}
		request, err := p.requestOf(c)
		if err != nil {
			return nil, err
		}
		all = append(all, request)
	}
	return all, nil
}

// requestOf returns the request of one command.
func (p place) requestOf(c Command) (sysnet.NetlinkRequest, error) {
	in := []*nl.RtAttr{attribute(unix.NFTA_RULE_TABLE, text(p.table)), attribute(unix.NFTA_RULE_CHAIN, text(c.chain))}
	switch c.verb {
	case newChain:
		return p.addChain(c.chain, nil), nil
	case deleteChain:
		return p.request(unix.NFT_MSG_DELCHAIN, 0, attribute(unix.NFTA_CHAIN_TABLE, text(p.table)), attribute(unix.NFTA_CHAIN_NAME, text(c.chain))), nil
	case flush:
		return p.request(unix.NFT_MSG_DELRULE, 0, in...), nil
	case remove:
		handle := binary.BigEndian.AppendUint64(nil, c.handle)
		return p.request(unix.NFT_MSG_DELRULE, 0, append(in, attribute(unix.NFTA_RULE_HANDLE, handle))...), nil
	}
	r, ok := encode(c.rule, p.v6, native)
	if !ok {
		return sysnet.NetlinkRequest{}, fmt.Errorf("%q: %w", c.rule, errUnknown)
	}
	return p.addRule(c, r)
}

// addRule is the request for a rule that a command adds or inserts.
func (p place) addRule(c Command, r encoded) (sysnet.NetlinkRequest, error) {
	expressions := attribute(unix.NLA_F_NESTED|unix.NFTA_RULE_EXPRESSIONS, nil)
	for _, e := range r.expressions {
		data, err := expr.Marshal(p.family(), e)
		if err != nil {
			return sysnet.NetlinkRequest{}, fmt.Errorf("%q: %w", c.rule, errUnknown)
		}
		expressions.AddRtAttr(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, data)
	}
	in := []*nl.RtAttr{attribute(unix.NFTA_RULE_TABLE, text(p.table)), attribute(unix.NFTA_RULE_CHAIN, text(c.chain)), expressions}
	if r.proto != 0 {
		// Matches of iptables ask for the protocol of their rule.
		known := attribute(unix.NLA_F_NESTED|unix.NFTA_RULE_COMPAT, nil)
		known.AddRtAttr(unix.NFTA_RULE_COMPAT_PROTO, be32(uint32(r.proto)))
		known.AddRtAttr(unix.NFTA_RULE_COMPAT_FLAGS, be32(0))
		in = append(in, known)
	}
	flags := uint16(unix.NLM_F_CREATE)
	if c.verb == add {
		flags |= unix.NLM_F_APPEND
	}
	return p.request(unix.NFT_MSG_NEWRULE, flags, in...), nil
}

// addChain is the request for a chain. b is nil for one that is not built in, which must not exist. A built-in chain may
// be there already: another program may have added it a moment ago. It accepts by default.
func (p place) addChain(chain string, b *base) sysnet.NetlinkRequest {
	attrs := []*nl.RtAttr{attribute(unix.NFTA_CHAIN_TABLE, text(p.table)), attribute(unix.NFTA_CHAIN_NAME, text(chain))}
	flags := uint16(unix.NLM_F_CREATE | unix.NLM_F_EXCL)
	if b != nil {
		hook := attribute(unix.NLA_F_NESTED|unix.NFTA_CHAIN_HOOK, nil)
		hook.AddRtAttr(unix.NFTA_HOOK_HOOKNUM, be32(b.hook))
		hook.AddRtAttr(unix.NFTA_HOOK_PRIORITY, be32(uint32(b.priority)))
		attrs = append(attrs, hook, attribute(unix.NFTA_CHAIN_TYPE, text(b.kind)))
		flags = unix.NLM_F_CREATE
	}
	return p.request(unix.NFT_MSG_NEWCHAIN, flags, attrs...)
}

func (p place) request(message, flags uint16, attrs ...*nl.RtAttr) sysnet.NetlinkRequest {
	return sysnet.NetlinkRequest{Type: sysnet.NftablesType(message), Flags: flags, Payload: p.message(attrs...)}
}

// message is a message about the table's family.
func (p place) message(attrs ...*nl.RtAttr) []byte {
	payload := sysnet.NetfilterHeader(p.family())
	for _, a := range attrs {
		payload = append(payload, a.Serialize()...)
	}
	return payload
}

// afterHeader returns the attributes of a message.
func afterHeader(message []byte) []byte { return message[min(len(message), 4):] }

func attribute(kind int, value []byte) *nl.RtAttr { return nl.NewRtAttr(kind, value) }

func text(s string) []byte { return append([]byte(s), 0) }

// word reads a text.
func word(value []byte) string { return string(value[:max(0, len(value)-1)]) }

func be32(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

// number reads a number of 32 bits, 0 for none.
func number(value []byte) uint32 {
	if len(value) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(value)
}
