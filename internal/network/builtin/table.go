package builtin

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/network/hostport"
	"github.com/berthrun/berth/internal/sys/sysnet"
)

// tablePrefix starts the name of every instance's table.
const tablePrefix = "berth"

// The maps of host ports. A port is an element, never a rule: an element costs
// the same with ten and with ten thousand of them. The addr maps are for ports
// that are mapped on one address of the host and are looked at first.
const (
	mapAny4  = "ports4"
	mapAny6  = "ports6"
	mapAddr4 = "addrports4"
	mapAddr6 = "addrports6"
)

// element is one entry of a map: from a port of the host to one of a pod.
type element struct {
	set      string
	key, val string // raw bytes
}

// table is the instance's nftables table. Whenever it differs from what it should be, it
// is rebuilt in one transaction, so that no packet sees a part of it.
type table struct {
	name   string
	bridge string
	// cluster is what pods reach with their own addresses.
	cluster []netip.Prefix
	// promiscuous: the bridge passes frames to the host that it also forwards.
	promiscuous bool
	// bridgeMAC is the link address of the bridge.
	bridgeMAC []byte

	mu    sync.Mutex
	conn  *nftables.Conn
	gen   *sysnet.Netlink
	table *nftables.Table
	// frames is the table that checks the frames of pods, nil where the kernel has none
	// of its family.
	frames *nftables.Table
	sets   map[string]*nftables.Set
	// rules per chain and the elements that should be there.
	chains   map[string]*nftables.Chain
	rules    map[string]int
	elements map[element]bool
	// seen is the generation of the ruleset at our last check.
	seen uint32
}

// openTable opens the sockets, in the namespace of the calling thread.
func openTable(name, bridge string) (*table, error) {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("cannot open the nftables socket: %w", err)
	}
	gen, err := sysnet.OpenNetlink(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	return &table{
		name: name, bridge: bridge, conn: conn, gen: gen,
		table:    &nftables.Table{Name: name, Family: nftables.TableFamilyINet},
		elements: map[element]bool{},
	}, nil
}

func (t *table) close() error {
	err := t.conn.CloseLasting()
	if genErr := t.gen.Close(); err == nil {
		err = genErr
	}
	return err
}

// setBridgeMAC is called before rebuild, when the bridge is there.
func (t *table) setBridgeMAC(mac []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bridgeMAC = mac
}

// rebuild replaces the table by what it should be. list returns the elements. A change comes before or after all of
// rebuild. Its record is written before it, so one that comes before is in the list.
func (t *table) rebuild(subnets []netip.Prefix, list func() []element) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	elements := list()
	for _, table := range t.tables() {
		t.conn.AddTable(table) // so that there is one to delete
		t.conn.DelTable(table)
		t.conn.AddTable(table)
	}
	t.elements = map[element]bool{}
	if err := t.addSets(); err != nil {
		return err
	}
	t.addRules(subnets)
	if t.frames != nil {
		if err := t.addFrameSets(); err != nil {
			return fmt.Errorf("cannot make the nftables sets of table %s: %w", t.name, err)
		}
		t.addFrameRules()
		t.addCopyRules(subnets)
	}
	if err := t.addElements(elements); err != nil {
		return err
	}
	t.see()
	if err := t.conn.Flush(); err != nil {
		t.seen = 0
		return fmt.Errorf("cannot make nftables table %s: %w", t.name, err)
	}
	t.seeOwn()
	return nil
}

// tables are those of this instance.
func (t *table) tables() []*nftables.Table {
	if t.frames == nil {
		return []*nftables.Table{t.table}
	}
	return []*nftables.Table{t.table, t.frames}
}

// change adds and removes elements in one transaction.
func (t *table) change(add, remove []element) error {
	if len(add)+len(remove) == 0 {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for set, elems := range bySet(remove) {
		if err := t.conn.SetDeleteElements(t.sets[set], elems); err != nil {
			return fmt.Errorf("cannot remove elements of nftables table %s: %w", t.name, err)
		}
	}
	if err := t.addElements(add); err != nil {
		return err
	}
	if err := t.conn.Flush(); err != nil {
		return fmt.Errorf("cannot change nftables table %s: %w", t.name, err)
	}
	for _, e := range remove {
		delete(t.elements, e)
	}
	t.seeOwn()
	return nil
}

// addElements queues elements. The caller holds t.mu.
func (t *table) addElements(elements []element) error {
	const atOnce = 200 // a netlink attribute ends at 64 KiB
	for set, elems := range bySet(elements) {
		for len(elems) > 0 {
			part := elems[:min(atOnce, len(elems))]
			if err := t.conn.SetAddElements(t.sets[set], part); err != nil {
				return fmt.Errorf("cannot add elements to nftables table %s: %w", t.name, err)
			}
			elems = elems[len(part):]
		}
	}
	for _, e := range elements {
		t.elements[e] = true
	}
	return nil
}

func bySet(elements []element) map[string][]nftables.SetElement {
	sets := map[string][]nftables.SetElement{}
	for _, e := range elements {
		sets[e.set] = append(sets[e.set], nftables.SetElement{Key: []byte(e.key), Val: []byte(e.val)})
	}
	return sets
}

// check reports whether the host's ruleset has changed since the last check, and then whether our
// table is still as it should be.
func (t *table) check() (changed, intact bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.seen
	if t.see(); t.seen != 0 && t.seen == before {
		return false, true, nil
	}
	// What changes from here on has a later generation.
	if intact, err = t.intact(); !intact {
		t.seen = 0 // the repair may fail
	}
	return true, intact, err
}

// see records the generation of the ruleset; one that cannot be read is equal to none.
func (t *table) see() {
	t.seen = 0
	if now, err := t.gen.NftablesGeneration(); err == nil {
		t.seen = now
	}
}

// seeOwn records the generation after a transaction of ours. If there was another transaction since
// the last check, that one is still to be checked.
func (t *table) seeOwn() {
	before := t.seen
	if t.see(); t.seen != before+1 {
		t.seen = 0
	}
}

// intact compares the table in the kernel with what it should be.
func (t *table) intact() (bool, error) {
	tables, err := t.conn.ListTablesOfFamily(t.table.Family)
	if err != nil {
		return false, fmt.Errorf("cannot list nftables tables: %w", err)
	}
	found := false
	for _, other := range tables {
		found = found || other.Name == t.name
	}
	if !found {
		return false, nil
	}
	for chain, want := range t.rules {
		in := t.chains[chain]
		rules, err := t.conn.GetRules(in.Table, in)
		if err != nil || len(rules) != want {
			return false, nil
		}
	}
	here := 0
	for _, set := range t.sets {
		elems, err := t.conn.GetSetElements(set)
		if err != nil {
			return false, nil
		}
		for _, e := range elems {
			if !t.elements[element{set.Name, string(e.Key), string(e.Val)}] {
				return false, nil
			}
		}
		here += len(elems)
	}
	return here == len(t.elements), nil
}

// remove removes the table. Nil when there is none.
func (t *table) remove() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, table := range t.tables() {
		t.conn.AddTable(table)
		t.conn.DelTable(table)
	}
	if err := t.conn.Flush(); err != nil {
		return fmt.Errorf("cannot remove nftables table %s: %w", t.name, err)
	}
	return nil
}

// present keeps the elements that the maps have.
func (t *table) present(elements []element) []element {
	t.mu.Lock()
	defer t.mu.Unlock()
	var have []element
	for _, e := range elements {
		if t.elements[e] {
			have = append(have, e)
		}
	}
	return have
}

// foreign returns an error of kind Exists when the table of another instance has one of the
// record's ports.
func (t *table) foreign(rec *record) error {
	if len(rec.Ports) == 0 {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	tables, err := t.conn.ListTablesOfFamily(t.table.Family)
	if err != nil {
		return fmt.Errorf("cannot list nftables tables: %w", err)
	}
	for _, other := range tables {
		if other.Name == t.name || (other.Name != tablePrefix && !strings.HasPrefix(other.Name, tablePrefix+"-")) {
			continue
		}
		if err := t.heldBy(other, rec); err != nil {
			return err
		}
	}
	return nil
}

// heldBy looks for the record's ports in another instance's maps.
func (t *table) heldBy(other *nftables.Table, rec *record) error {
	held := map[hostport.Socket]bool{}
	for name := range mapTypes() {
		set, err := t.conn.GetSetByName(other, name)
		if err != nil {
			continue // it is gone, or is not berth's
		}
		elems, err := t.conn.GetSetElements(set)
		if err != nil {
			continue
		}
		for _, e := range elems {
			if s, ok := socketOf(name, e.Key); ok {
				held[s] = true
			}
		}
	}
	for _, s := range rec.sockets() {
		for h := range held {
			if h.Clash(s) {
				return hostport.Taken(s, "another berth on this host (nftables table "+other.Name+")")
			}
		}
	}
	return nil
}
