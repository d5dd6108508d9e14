package builtin

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/network/hostport"
	"github.com/berthrun/berth/internal/store"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func TestPool(t *testing.T) {
	p := newPool(netip.MustParsePrefix("10.0.0.0/29"))
	if got := p.gateway().String(); got != "10.0.0.1" {
		t.Errorf("gateway %s", got)
	}
	var got []string
	for {
		addr, err := p.take()
		if err != nil {
			if !errors.Is(err, errs.Exhausted) {
				t.Errorf("a full pool: %v, want kind Exhausted", err)
			}
			break
		}
		got = append(got, addr.String())
	}
	want := []string{"10.0.0.2/29", "10.0.0.3/29", "10.0.0.4/29", "10.0.0.5/29", "10.0.0.6/29"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	p.free(netip.MustParseAddr("10.0.0.4"))
	if addr, err := p.take(); err != nil || addr.Addr().String() != "10.0.0.4" {
		t.Errorf("after one was freed: %v, %v", addr, err)
	}
}

func TestPoolDelaysReuseOfAddresses(t *testing.T) {
	p := newPool(netip.MustParsePrefix("fd00::/64"))
	p.reserve(netip.MustParseAddr("fd00::7"))
	for _, want := range []string{"fd00::8", "fd00::9", "fd00::a"} {
		addr, err := p.take()
		if err != nil || addr.Addr().String() != want {
			t.Fatalf("%v, %v, want %s", addr, err, want)
		}
		p.free(addr.Addr())
	}
}

func TestChooseSubnets(t *testing.T) {
	first, err := chooseSubnets("", nil, true)
	if err != nil {
		t.Fatal(err)
	}
	again, _ := chooseSubnets("", nil, true)
	if diff := cmp.Diff(fmt.Sprint(first), fmt.Sprint(again)); diff != "" {
		t.Errorf("not the same twice: %s", diff)
	}
	if other, _ := chooseSubnets("other", nil, true); other[0] == first[0] || other[1] == first[1] {
		t.Errorf("two instances have %v and %v", first, other)
	}
	if only4, _ := chooseSubnets("", nil, false); len(only4) != 1 || only4[0] != first[0] {
		t.Errorf("without IPv6: %v", only4)
	}
	taken := append(prefixes("10.160.0.0/11", "fd00::/8"), first...)
	if _, err := chooseSubnets("", taken, true); !errors.Is(err, errs.Exhausted) {
		t.Errorf("all of fd00::/8 taken: %v, want kind Exhausted", err)
	}
	moved, err := chooseSubnets("", prefixes("10.160.0.0/11", first[1].String()), true)
	if err != nil || !strings.HasPrefix(moved[0].String(), "172.") || moved[1].Overlaps(first[1]) {
		t.Errorf("with the first choices taken: %v, %v", moved, err)
	}
}

func TestParseCIDRs(t *testing.T) {
	for text, want := range map[string]string{
		"":                                       "",
		"10.1.0.0/24":                            "10.1.0.0/24",
		"fd00::/64,10.1.0.0/24":                  "10.1.0.0/24,fd00::/64",
		"10.1.0.7/24, 10.2.0.0/24, fd00::/64, x": "!",
		"10.1.0.7/24,10.2.0.0/24":                "10.1.0.0/24",
		"10.1.0.0/31":                            "!",
		"0.0.0.0/0":                              "!",
		"10.1.0.0/24,::/0":                       "!",
		"127.0.0.0/8":                            "!",
		"ff00::/8":                               "!",
	} {
		got, err := parseCIDRs(text)
		if want == "!" {
			if !errors.Is(err, errs.Invalid) {
				t.Errorf("%q: %v, want kind Invalid", text, err)
			}
		} else if err != nil || joinPrefixes(got) != want {
			t.Errorf("%q: %s, %v, want %s", text, joinPrefixes(got), err, want)
		}
	}
}

func TestNames(t *testing.T) {
	if BridgeName("") != "berth0" || BridgeName("default") != "berth0" || TableName("") != "berth" {
		t.Error("the default instance has other names than documented")
	}
	if a, b := BridgeName("one"), BridgeName("two"); a == b || len(a) > 15 || !strings.HasPrefix(a, "br-") {
		t.Errorf("bridges %q and %q", a, b)
	}
	usual, odd := strings.Repeat("0123456789abcdef", 4), "pod-with-a-long-name-1"
	if got := linkName(usual); got != "veth0123456789a" {
		t.Errorf("link of a usual id: %q", got)
	}
	if a, b := linkName(odd), linkName("pod-with-a-long-name-2"); a == b || len(a) != 15 {
		t.Errorf("links of odd ids: %q and %q", a, b)
	}
}

func TestAliasNamesTheRecord(t *testing.T) {
	for _, checked := range []bool{true, false} {
		rec := &record{Sandbox: "abc", Link: "vethabc", BootID: "boot", Addrs: prefixes("10.0.0.2/24", "fd00::2/64"), Checked: checked}
		got, ok := recordOf("vethabc", aliasOf(rec), "boot")
		if diff := cmp.Diff(fmt.Sprint(rec), fmt.Sprint(got)); !ok || diff != "" {
			t.Errorf("%v: %s", ok, diff)
		}
	}
	for _, alias := range []string{"", "berth sandbox ", "berth sandbox abc", "berth sandbox abc x", "berth sandbox abc checked", "berth sandbox abc checked 10.0.0.2/24", "berth sandbox ../x 10.0.0.2/24", "other abc 10.0.0.2/24"} {
		if rec, ok := recordOf("veth0", alias, ""); ok {
			t.Errorf("alias %q is taken for %v", alias, rec)
		}
	}
}

func TestElementsCoverTheirSockets(t *testing.T) {
	rec := &record{Addrs: prefixes("10.0.0.2/24", "fd00::2/64"), Ports: []network.Port{
		{Protocol: "tcp", HostPort: 80, ContainerPort: 8080},
		{Protocol: "udp", HostPort: 53, ContainerPort: 53, HostIP: "127.0.0.1"},
		{Protocol: "sctp", HostPort: 9, ContainerPort: 9, HostIP: "::1"},
	}}
	var got []hostport.Socket
	for _, e := range elementsOf(rec) {
		s, ok := socketOf(e.set, []byte(e.key))
		if !ok {
			t.Errorf("no socket in %q of %s", e.key, e.set)
		}
		got = append(got, s)
	}
	if diff := cmp.Diff(fmt.Sprint(rec.sockets()), fmt.Sprint(got)); diff != "" {
		t.Error(diff)
	}
}

func TestPoolClaims(t *testing.T) {
	p := newPool(netip.MustParsePrefix("10.0.0.0/29"))
	for address, want := range map[string]string{"10.0.0.0": "invalid", "10.0.0.1": "invalid", "10.0.0.7": "invalid", "10.0.0.4": "taken, then free"} {
		addr := netip.MustParseAddr(address)
		got, free, err := p.claim(addr)
		if want == "invalid" {
			if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), network.AnnotationAddresses) {
				t.Errorf("%s: %v, %v", address, got, err)
			}
			continue
		}
		if err != nil || !free || got.String() != address+"/29" {
			t.Errorf("%s: %v, %v, %v", address, got, free, err)
		}
		if _, free, err := p.claim(addr); free || err != nil {
			t.Errorf("%s once more: %v, %v", address, free, err)
		}
	}
	for _, want := range []string{"10.0.0.2/29", "10.0.0.3/29", "10.0.0.5/29"} {
		if addr, err := p.take(); err != nil || addr.String() != want {
			t.Errorf("%v, %v; want %s", addr, err, want)
		}
	}
}

// Pods of a former runtime keep their addresses: no other pod gets one of them.
func TestPoolLeavesTakenAddresses(t *testing.T) {
	p := newPool(netip.MustParsePrefix("10.0.0.0/29"))
	former := map[netip.Addr]bool{netip.MustParseAddr("10.0.0.2"): true, netip.MustParseAddr("10.0.0.4"): true}
	p.taken = func(addr netip.Addr) bool { return former[addr] }
	for _, want := range []string{"10.0.0.3", "10.0.0.5", "10.0.0.6"} {
		if got, err := p.take(); err != nil || got.Addr().String() != want {
			t.Errorf("take: %v, %v, want %s", got, err, want)
		}
	}
	if got, err := p.take(); !errors.Is(err, errs.Exhausted) {
		t.Errorf("a full pool: %v, %v", got, err)
	}
	if got, free, err := p.claim(netip.MustParseAddr("10.0.0.4")); free || err != nil {
		t.Errorf("claim of a taken address: %v, %v, %v", got, free, err)
	}
	delete(former, netip.MustParseAddr("10.0.0.4"))
	if got, err := p.take(); err != nil || got.Addr().String() != "10.0.0.4" {
		t.Errorf("when its pod is gone: %v, %v", got, err)
	}
}

// TestOwnerOfElement: each element of a record names the record's link or address.
func TestOwnerOfElement(t *testing.T) {
	rec := &record{Link: "veth0123456789a", Checked: true, Addrs: prefixes("10.0.0.2/24", "fd00::2/64"), Ports: []network.Port{
		{Protocol: "tcp", HostPort: 80, ContainerPort: 8080},
		{Protocol: "udp", HostPort: 53, ContainerPort: 53, HostIP: "127.0.0.1"},
		{Protocol: "sctp", HostPort: 9, ContainerPort: 9, HostIP: "::1"},
	}}
	withFrames := &table{frames: &nftables.Table{}}
	all := append(elementsOf(rec), withFrames.frameElements(rec)...)
	if len(all) < 8 {
		t.Fatalf("only %d elements", len(all))
	}
	for _, e := range all {
		pod, link := OwnerOfElement(e.set, []byte(e.key), []byte(e.val))
		if pod != rec.addr(true) && pod != rec.addr(false) && link != rec.Link {
			t.Errorf("%s %x: %v, %q", e.set, e.key, pod, link)
		}
	}
	for _, set := range []string{"other", mapAny4, setMACs} {
		if pod, link := OwnerOfElement(set, []byte{1}, []byte{2}); pod.IsValid() || link != "" {
			t.Errorf("%s: %v, %q", set, pod, link)
		}
	}
}

func TestSandboxOfLink(t *testing.T) {
	if sandbox, ok := SandboxOfLink(aliasOf(&record{Sandbox: "abc", Addrs: prefixes("10.0.0.2/24")})); !ok || sandbox != "abc" {
		t.Errorf("%q, %v", sandbox, ok)
	}
	for _, alias := range []string{"", "my link", aliasPrefix, aliasPrefix + "abc", aliasPrefix + "../x 10.0.0.2/24"} {
		if sandbox, ok := SandboxOfLink(alias); ok {
			t.Errorf("%q is of sandbox %q", alias, sandbox)
		}
	}
}

// TestReadAttached reads what a network has written, also while it writes.
func TestReadAttached(t *testing.T) {
	dir := t.TempDir()
	if all, err := ReadAttached(dir); err != nil || len(all) != 0 {
		t.Errorf("without a directory: %v, %v", all, err)
	}
	records, _, err := store.Open(store.Options[record]{Path: filepath.Join(dir, attachmentsDir), Quarantine: filepath.Join(dir, "quarantine")})
	if err != nil {
		t.Fatal(err)
	}
	if err := records.Create("abc", &record{Sandbox: "abc", Link: "vethabc", Addrs: prefixes("10.0.0.2/24", "fd00::2/64")}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, attachmentsDir, sysfile.TempPrefix+"x.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := "[{abc vethabc [10.0.0.2 fd00::2]}]"
	if all, err := ReadAttached(dir); err != nil || fmt.Sprint(all) != want {
		t.Errorf("%v, %v, want %s", all, err, want)
	}
	if err := os.WriteFile(filepath.Join(dir, attachmentsDir, "y.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := ReadAttached(dir); err == nil {
		t.Errorf("a damaged record: %v", all)
	}
}

// TestAddressesThatCannotBeListed: no port counts as one that leads nowhere while nobody knows the host's addresses.
func TestAddressesThatCannotBeListed(t *testing.T) {
	known := netip.MustParseAddr("192.0.2.1")
	for _, c := range []struct {
		err           error
		has, hasOther bool
		faults        int
	}{{nil, true, false, 0}, {errors.New("no buffer space"), true, true, 1}} {
		faults := 0
		has := hostHas(func() (map[netip.Addr]bool, error) { return map[netip.Addr]bool{known: c.err == nil}, c.err }, func(error) { faults++ })
		for range 2 {
			if has(known) != c.has || has(known.Next()) != c.hasOther {
				t.Errorf("with the error %v: %v and %v, want %v and %v", c.err, has(known), has(known.Next()), c.has, c.hasOther)
			}
		}
		if faults != c.faults {
			t.Errorf("with the error %v: it was reported %d times, want %d", c.err, faults, c.faults)
		}
	}
}
