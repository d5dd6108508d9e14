package xtables

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/network/builtin/nftexpr"
)

// form is how a rule compares what both nftables and a match of iptables can compare.
type form int

const (
	native form = iota // as iptables 1.8.9 writes it
	compat             // with the match, as older versions write it
)

// encoded is a rule for the kernel.
type encoded struct {
	proto       byte // 0 for any
	expressions []expr.Any
}

// reg is the register that iptables uses.
const reg = unix.NFT_REG_1

// encode translates the words of a rule to what iptables writes for them. ok is false for words that it does not know.
func encode(words []string, v6 bool, f form) (r encoded, ok bool) {
	e := encoder{v6: v6, form: f}
	not := false
	for i := 0; i < len(words); i++ {
		if words[i] == "!" && !not {
			not = true
			continue
		}
		option := words[i]
		if i++; i == len(words) || !e.option(option, words[i], not) {
			return encoded{}, false
		}
		not = false
	}
	target, ok := e.verdict()
	if !ok || not || e.module != "" {
		return encoded{}, false
	}
	var head []expr.Any
	if e.proto != 0 {
		head = nftexpr.MatchProto(e.proto)
	}
	return encoded{e.proto, slices.Concat(head, e.from, e.to, e.matches, []expr.Any{&expr.Counter{}, target})}, true
}

// encoder is what is known of a rule.
type encoder struct {
	v6       bool
	form     form
	proto    byte
	from, to []expr.Any
	matches  []expr.Any
	module   string // the match of the last -m, while its option is missing
	target   string
	argument string // of the target
}

// option takes an option with its value. not is whether there was a "!" before it.
func (e *encoder) option(name, value string, not bool) bool {
	if not && name != "-s" && name != "-d" {
		return false
	}
	switch name {
	case "-p":
		return e.protocol(value)
	case "-s":
		return e.address(&e.from, nftexpr.Source, value, not)
	case "-d":
		return e.address(&e.to, nftexpr.Destination, value, not)
	case "-m":
		was := e.module
		e.module = value
		return was == ""
	case "--comment":
		return e.of("comment") && e.comment(value)
	case "--dst-type":
		return e.of("addrtype") && e.localDestination(value)
	case "--mark":
		return e.of("mark") && e.mark(value)
	case "--destination-ports":
		return e.of("multiport") && e.ports(value)
	case "--dport":
		return e.port(value)
	case "-j":
		was := e.target
		e.target = value
		return was == ""
	case "--to-destination", "--set-xmark":
		was := e.argument
		e.argument = name + " " + value
		return was == ""
	}
	return false
}

// of reports whether the last -m named a match, whose option comes now.
func (e *encoder) of(match string) bool {
	is := e.module == match
	e.module = ""
	return is
}

func (e *encoder) protocol(value string) bool {
	was := e.proto
	e.proto = map[string]byte{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}[value]
	return was == 0 && e.proto != 0
}

// address matches an address or a prefix. iptables compares whole bytes without a mask.
func (e *encoder) address(into *[]expr.Any, side nftexpr.Side, value string, not bool) bool {
	prefix, err := netip.ParsePrefix(value)
	if addr, one := netip.ParseAddr(value); one == nil {
		prefix, err = addr.Prefix(addr.BitLen())
	}
	if err != nil || prefix.Addr().Is6() != e.v6 || prefix.Addr().Zone() != "" || *into != nil {
		return false
	}
	bits := prefix.Bits()
	switch {
	case bits == 0:
		return !not
	case bits%8 != 0:
		*into = nftexpr.MatchAddrPrefix(side, prefix, !not)
		return true
	}
	op := expr.CmpOpEq
	if not {
		op = expr.CmpOpNeq
	}
	load := nftexpr.LoadAddr(side, !e.v6, reg)
	load.Len = uint32(bits / 8)
	*into = []expr.Any{load, &expr.Cmp{Op: op, Register: reg, Data: prefix.Masked().Addr().AsSlice()[:load.Len]}}
	return true
}

func (e *encoder) comment(value string) bool {
	if value == "" || len(value) >= xt.CommentSize {
		return false
	}
	comment := xt.Comment(value)
	e.matches = append(e.matches, &expr.Match{Name: "comment", Info: &comment})
	return true
}

func (e *encoder) localDestination(value string) bool {
	e.matches = append(e.matches, &expr.Match{Name: "addrtype", Rev: 1, Info: &xt.AddrTypeV1{Dest: uint16(xt.AddrTypeLocal)}})
	return value == "LOCAL"
}

func (e *encoder) mark(value string) bool {
	mark, mask, ok := numbers(value)
	if !ok || mask == 0 {
		return false
	}
	if e.form == compat {
		e.matches = append(e.matches, &expr.Match{Name: "mark", Rev: 1, Info: info(mark, mask, 0)})
		return true
	}
	e.matches = append(e.matches, &expr.Meta{Key: expr.MetaKeyMARK, Register: reg})
	if mask != ^uint32(0) {
		e.matches = append(e.matches, &expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(mask), Xor: make([]byte, 4)})
	}
	e.matches = append(e.matches, &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: binaryutil.NativeEndian.PutUint32(mark)})
	return true
}

// verdict is the last expression: what the rule does.
func (e *encoder) verdict() (expr.Any, bool) {
	option, argument, _ := strings.Cut(e.argument, " ")
	switch e.target {
	case "DNAT":
		to, err := netip.ParseAddrPort(argument)
		if option != "--to-destination" || err != nil || to.Addr().Is6() != e.v6 || to.Addr().Zone() != "" || to.Port() == 0 {
			return nil, false
		}
		ip := to.Addr().AsSlice()
		return &expr.Target{Name: "DNAT", Rev: 2, Info: &xt.NatRange2{NatRange: xt.NatRange{
			Flags: uint(xt.NatRangeMapIPs | xt.NatRangeProtoSpecified), MinIP: ip, MaxIP: ip, MinPort: to.Port(), MaxPort: to.Port(),
		}}}, e.proto != 0
	case "MARK":
		mark, mask, ok := numbers(argument)
		return &expr.Target{Name: "MARK", Rev: 2, Info: info(mark, mask)}, ok && option == "--set-xmark"
	}
	if e.argument != "" {
		return nil, false
	}
	verdicts := map[string]expr.VerdictKind{"ACCEPT": expr.VerdictAccept, "DROP": expr.VerdictDrop, "RETURN": expr.VerdictReturn}
	switch kind, ok := verdicts[e.target]; {
	case ok:
		return &expr.Verdict{Kind: kind}, true
	case e.target == "MASQUERADE" && e.v6:
		return &expr.Target{Name: e.target, Info: &xt.NatRange{MinIP: make([]byte, 16), MaxIP: make([]byte, 16)}}, true
	case e.target == "MASQUERADE":
		return &expr.Target{Name: e.target, Info: &xt.NatIPv4MultiRangeCompat{{MinIP: make([]byte, 4), MaxIP: make([]byte, 4)}}}, true
	default:
		// The kernel refuses a rule that leads to a chain which does not exist, such as another target's name.
		return &expr.Verdict{Kind: expr.VerdictJump, Chain: e.target}, e.target != "" && e.target != "QUEUE"
	}
}

// numbers reads VALUE/MASK in the way that iptables lists them.
func numbers(text string) (value, mask uint32, ok bool) {
	first, second, both := strings.Cut(text, "/")
	v, err := strconv.ParseUint(first, 0, 32)
	m, fault := strconv.ParseUint(second, 0, 32)
	return uint32(v), uint32(m), both && err == nil && fault == nil
}
