package xtables

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// TestUnknownWords: the program decides on what this package does not know, and reports what is wrong.
func TestUnknownWords(t *testing.T) {
	for _, rule := range []string{
		"", "!", "-j", "-s 10.0.0.1", "-j ACCEPT !", "-j QUEUE", "-j ACCEPT -j DROP", "-s 10.0.0.1 -s 10.0.0.2 -j ACCEPT",
		"-s fd61::2 -j ACCEPT", "-s host -j ACCEPT", "-s 10.0.0.1,10.0.0.2 -j ACCEPT", "-s 10.0.0.0/33 -j ACCEPT", "! -s 0.0.0.0/0 -j ACCEPT",
		"! -p tcp -j ACCEPT", "-p icmp -j ACCEPT", "-p TCP -j ACCEPT", "-p tcp -p udp -j ACCEPT",
		"--dport 80 -j ACCEPT", "-p tcp --dport 65536 -j ACCEPT", "-p tcp --dport http -j ACCEPT", "-p tcp --dport 1:2 -j ACCEPT", "-p tcp --syn -j ACCEPT",
		"-m comment -j ACCEPT", "-m comment --mark 1/1 -j ACCEPT", "--comment x -j ACCEPT", "-m comment -m comment --comment x -j ACCEPT",
		"-m comment --comment " + strings.Repeat("x", 256) + " -j ACCEPT",
		"-m multiport --destination-ports 1 -j ACCEPT", "-p tcp -m multiport --destination-ports 1:2 -j ACCEPT",
		"-p tcp -m multiport --destination-ports " + strings.Repeat("1,", 15) + "1 -j ACCEPT",
		"-m addrtype --dst-type BROADCAST -j ACCEPT", "-m mark --mark 1 -j ACCEPT", "-m mark --mark 0x1/0x0 -j ACCEPT", "-m mark ! --mark 0x1/0x1 -j ACCEPT",
		"-j DNAT --to-destination 10.0.0.1:80", "-p tcp -j DNAT", "-p tcp -j DNAT --to-destination 10.0.0.1", "-p tcp -j DNAT --to-destination [fd61::2]:80",
		"-p tcp -j DNAT --to-destination 10.0.0.1:0", "-p tcp -j DNAT --set-xmark 0x1/0x1", "-j MARK --set-xmark 1", "-j MARK", "-j ACCEPT --set-xmark 0x1/0x1",
	} {
		if r, ok := encode(strings.Fields(rule), false, native); ok {
			t.Errorf("%q: %+v, want that it is unknown", rule, r)
		}
	}
}

// elements are expressions as the kernel lists them.
func elements(t testing.TB, family byte, expressions []expr.Any) []byte {
	t.Helper()
	var list []byte
	for _, e := range expressions {
		data, err := expr.Marshal(family, e)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, nl.NewRtAttr(unix.NFTA_LIST_ELEM, data).Serialize()...)
	}
	return list
}

// TestDecode: a rule that is read compares equal with the one that was written, and a rule with an unknown expression
// with none.
func TestDecode(t *testing.T) {
	words := strings.Fields("-p tcp ! -s 10.0.0.0/12 -d 10.0.0.0/16 -m comment --comment x -m mark --mark 0x1/0x1 --dport 80 -j OTHER")
	r, ok := encode(words, false, native)
	if !ok {
		t.Fatal("the rule is unknown")
	}
	want, err := marshal(unix.NFPROTO_IPV4, r.expressions)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range r.expressions {
		if counter, ok := e.(*expr.Counter); ok {
			counter.Packets = 7 // does not count
		}
	}
	read, ok := decode(unix.NFPROTO_IPV4, elements(t, unix.NFPROTO_IPV4, r.expressions))
	if !ok {
		t.Fatalf("%+v", read)
	}
	if got, err := marshal(unix.NFPROTO_IPV4, read); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%x, %v\nwant %x", got, err, want)
	}
	read, ok = decode(unix.NFPROTO_IPV4, elements(t, unix.NFPROTO_IPV4, append([]expr.Any{&expr.Ct{Register: 1}}, r.expressions...)))
	if ok || len(read) != len(r.expressions) {
		t.Errorf("%t with %d expressions, want the %d that are known", ok, len(read), len(r.expressions))
	}
}

// FuzzDecode: bytes that are no rule are an unknown one. A known one is written again with the same meaning.
func FuzzDecode(f *testing.F) {
	for _, rule := range []string{
		"-p tcp --dport 80 -s 10.0.0.0/9 -j ACCEPT", "-m comment --comment x -j MASQUERADE", "-p sctp --dport 80 -j DNAT --to-destination 10.0.0.1:80",
		"-m mark --mark 0x1/0x1 -j MARK --set-xmark 0x2/0x2", "-m addrtype --dst-type LOCAL -j OTHER",
	} {
		r, ok := encode(strings.Fields(rule), false, native)
		if !ok {
			f.Fatal(rule)
		}
		f.Add(elements(f, unix.NFPROTO_IPV4, r.expressions))
	}
	f.Fuzz(func(t *testing.T, list []byte) {
		first, ok := decode(unix.NFPROTO_IPV4, list)
		if !ok {
			return
		}
		want, err := marshal(unix.NFPROTO_IPV4, first)
		if err != nil {
			return // it compares with nothing
		}
		second, ok := decode(unix.NFPROTO_IPV4, elements(t, unix.NFPROTO_IPV4, first))
		if got, err := marshal(unix.NFPROTO_IPV4, second); !ok || err != nil || !bytes.Equal(got, want) {
			t.Errorf("%x, %v\nwant %x", got, err, want)
		}
	})
}

// FuzzEncode: words of a configuration are a rule that the kernel can get, or unknown.
func FuzzEncode(f *testing.F) {
	f.Add("-p tcp --dport 80 -s 10.0.0.0/9 -j ACCEPT", false)
	f.Add("-p udp -m multiport --destination-ports 80,81 ! -d fd61::/63 -j X", true)
	f.Add("-m mark --mark 0x1/0x1 -j MARK --set-xmark 0x2/0x2", false)
	f.Add("-p sctp --dport 1 -j DNAT --to-destination [fd61::2]:80", true)
	f.Fuzz(func(t *testing.T, rule string, v6 bool) {
		for _, form := range []form{native, compat} {
			r, ok := encode(strings.Fields(rule), v6, form)
			if !ok {
				continue
			}
			family := place{v6: v6}.family()
			if _, ok := decode(family, elements(t, family, r.expressions)); !ok {
				t.Errorf("%q is written as %+v, which is unknown", rule, r.expressions)
			}
		}
	})
}
