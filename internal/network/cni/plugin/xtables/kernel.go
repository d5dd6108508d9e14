package xtables

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/sys/sysnet"
)

// kernel is a table that was read by netlink.
type kernel struct {
	place
	chains map[string][]kernelRule
}

var _ source = (*kernel)(nil)

// kernelRule is a rule as the kernel sent it.
type kernelRule struct {
	handle      uint64
	expressions []byte
}

// errForeign is that a chain has the name of a built-in chain of iptables, and is not that chain.
var errForeign = errors.New("the chain is not that of iptables")

// family is the family of the table, for the kernel.
func (p place) family() byte {
	if p.v6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// readKernel reads chains of a table in the calling thread's network namespace. A chain that does not exist is no error.
func readKernel(p place, chains []string) (*kernel, error) {
	socket, err := sysnet.OpenNetlink(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	k := &kernel{p, map[string][]kernelRule{}}
	for _, chain := range chains {
		if k.hasChain(chain) {
			continue
		}
		exists, err := k.exists(socket, chain)
		if err != nil {
			return nil, err
		}
		if !exists {
			continue
		}
		if k.chains[chain], err = k.rules(socket, chain); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// exists asks the kernel for a chain. The error is errForeign for a chain that iptables would not make.
func (p place) exists(socket *sysnet.Netlink, chain string) (bool, error) {
	replies, err := socket.Do(sysnet.NetlinkRequest{
		Type:    sysnet.NftablesType(unix.NFT_MSG_GETCHAIN),
		Payload: p.message(attribute(unix.NFTA_CHAIN_TABLE, text(p.table)), attribute(unix.NFTA_CHAIN_NAME, text(chain))),
	})
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot read chain %s of table %s: %w", chain, p.table, err)
	}
	attrs := afterHeader(replies[0])
	var is *base
	if hook := sysnet.Attribute(attrs, unix.NFTA_CHAIN_HOOK); hook != nil {
		is = &base{
			hook:     number(sysnet.Attribute(hook, unix.NFTA_HOOK_HOOKNUM)),
			priority: int32(number(sysnet.Attribute(hook, unix.NFTA_HOOK_PRIORITY))),
			kind:     word(sysnet.Attribute(attrs, unix.NFTA_CHAIN_TYPE)),
		}
	}
	want, builtin := builtins(p.table)[chain]
	if builtin != (is != nil) || builtin && want != *is {
		return false, fmt.Errorf("chain %s of table %s: %w", chain, p.table, errForeign)
	}
	return true, nil
}

// rules reads the rules of a chain. A list that changed meanwhile is read again.
func (p place) rules(socket *sysnet.Netlink, chain string) ([]kernelRule, error) {
	return sysnet.WholeList(func() ([]kernelRule, error) {
		var all []kernelRule
		whole, err := socket.Dump(sysnet.NetlinkRequest{
			Type:    sysnet.NftablesType(unix.NFT_MSG_GETRULE),
			Payload: p.message(attribute(unix.NFTA_RULE_TABLE, text(p.table)), attribute(unix.NFTA_RULE_CHAIN, text(chain))),
		}, func(payload []byte) {
			attrs := afterHeader(payload)
			// A kernel may list more than it was asked for.
			if word(sysnet.Attribute(attrs, unix.NFTA_RULE_CHAIN)) != chain || word(sysnet.Attribute(attrs, unix.NFTA_RULE_TABLE)) != p.table {
				return
			}
			if handle := sysnet.Attribute(attrs, unix.NFTA_RULE_HANDLE); len(handle) == 8 {
				all = append(all, kernelRule{binary.BigEndian.Uint64(handle), bytes.Clone(sysnet.Attribute(attrs, unix.NFTA_RULE_EXPRESSIONS))})
			}
		})
		if err == nil && !whole {
			err = nl.ErrDumpInterrupted
		}
		return all, err
	})
}

func (k *kernel) hasChain(chain string) bool {
	_, ok := k.chains[chain]
	return ok
}

func (k *kernel) hasRule(chain string, words []string) bool {
	for _, form := range []form{native, compat} {
		wanted, ok := encode(words, k.v6, form)
		if !ok {
			return false
		}
		want, err := marshal(k.family(), wanted.expressions)
		if err != nil {
			return false
		}
		has := func(r kernelRule) bool {
			expressions, ok := decode(k.family(), r.expressions)
			if !ok {
				return false
			}
			got, err := marshal(k.family(), expressions)
			return err == nil && bytes.Equal(got, want)
		}
		if slices.ContainsFunc(k.chains[chain], has) {
			return true
		}
	}
	return false
}

func (k *kernel) jumps(from, to string) []Command {
	var found []Command
	for _, r := range k.chains[from] {
		expressions, _ := decode(k.family(), r.expressions)
		if len(expressions) == 0 {
			continue
		}
		if last, ok := expressions[len(expressions)-1].(*expr.Verdict); ok && last.Kind == expr.VerdictJump && last.Chain == to {
			found = append(found, Command{verb: remove, chain: from, handle: r.handle})
		}
	}
	return found
}

// lists reports whether iptables can list a chain: all its rules have expressions that iptables writes.
func (k *kernel) lists(chain string) bool {
	return !slices.ContainsFunc(k.chains[chain], func(r kernelRule) bool {
		_, ok := decode(k.family(), r.expressions)
		return !ok
	})
}

// change makes the changes in one transaction of the kernel. A rule that this package cannot write has the program make
// them all.
func (k *kernel) change(ctx context.Context, commands []Command) error {
	socket, err := sysnet.OpenNetlink(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer socket.Close()
	requests, err := k.requests(socket, commands)
	if errors.Is(err, errUnknown) || errors.Is(err, errForeign) {
		return k.place.change(ctx, commands)
	}
	if err != nil {
		return err
	}
	return socket.ChangeNftables(requests...)
}
