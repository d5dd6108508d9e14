package xtables

import (
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/sys/sysnet"
)

// decode reads the expressions of a rule. ok is false for a rule that has one which iptables does not write, or which
// this package cannot read; the others are returned.
func decode(family byte, list []byte) (expressions []expr.Any, ok bool) {
	ok = true
	for _, element := range sysnet.Attributes(list) {
		e := decodeOne(family, word(sysnet.Attribute(element, unix.NFTA_EXPR_NAME)), sysnet.Attribute(element, unix.NFTA_EXPR_DATA))
		if e == nil {
			ok = false
			continue
		}
		expressions = append(expressions, e)
	}
	return expressions, ok
}

// decodeOne reads an expression. Nil for one that is unknown.
func decodeOne(family byte, name string, data []byte) expr.Any {
	var e expr.Any
	switch name {
	case "payload":
		e = &expr.Payload{}
	case "meta":
		e = &expr.Meta{}
	case "cmp":
		e = &expr.Cmp{}
	case "bitwise":
		e = &expr.Bitwise{}
	case "counter":
		return &expr.Counter{} // what it has counted is of no interest
	case "match":
		// The library reads some structs and not others. Bytes are enough to compare.
		info := xt.Unknown(sysnet.Attribute(data, unix.NFTA_MATCH_INFO))
		return &expr.Match{Name: word(sysnet.Attribute(data, unix.NFTA_MATCH_NAME)), Rev: number(sysnet.Attribute(data, unix.NFTA_MATCH_REV)), Info: &info}
	case "target":
		info := xt.Unknown(sysnet.Attribute(data, unix.NFTA_TARGET_INFO))
		return &expr.Target{Name: word(sysnet.Attribute(data, unix.NFTA_TARGET_NAME)), Rev: number(sysnet.Attribute(data, unix.NFTA_TARGET_REV)), Info: &info}
	case "immediate": // iptables uses it for verdicts alone
		verdict := sysnet.Attribute(sysnet.Attribute(data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT)
		if verdict == nil {
			return nil
		}
		return &expr.Verdict{
			Kind:  expr.VerdictKind(int32(number(sysnet.Attribute(verdict, unix.NFTA_VERDICT_CODE)))),
			Chain: word(sysnet.Attribute(verdict, unix.NFTA_VERDICT_CHAIN)),
		}
	default:
		return nil
	}
	if expr.Unmarshal(family, data, e) != nil {
		return nil
	}
	return e
}

// marshal returns bytes by which two rules compare: what a counter has counted is not among them.
func marshal(family byte, expressions []expr.Any) ([]byte, error) {
	var all []byte
	for _, e := range expressions {
		if _, ok := e.(*expr.Counter); ok {
			continue
		}
		data, err := expr.Marshal(family, e)
		if err != nil {
			return nil, err
		}
		all = append(all, data...)
	}
	return all, nil
}
