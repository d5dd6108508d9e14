// Package ruleset holds a model of policies in two tables of nftables, one for each family. Each pod, peer
// and port is an element of a set or map. A change is one transaction of the kernel.
//
// A transaction is not one moment for a packet: each chain of a hook, and each lookup in a set, sees the
// rules from before it or from after it. So an isolated pod's address stays in its set, that set sends
// the packet to a chain that stays too, and what this chain cannot place is dropped. Chains of hooks are
// replaced only while other tables enforce the same.
//
// The tables have no rule for established connections. Each packet is compared with the rules by
// client, server and port of its connection. Answers have rules of their own: there the source of a packet
// is the server, and its destination the client. So a connection that a change forbids is cut with the next
// packet, in both directions, and nothing of it is remembered.
//
// Packets of the first direction are compared in the hook postrouting, before their source changes.
// There packets for services already have the address of a pod, also those that IPVS sends. Packets of
// answers are compared in the hook forward, where they still have the address of the pod, and already
// that of the client. Packets between two pods of one bridge get there by the kernel's br_netfilter.
//
// Isolation is by the addresses that pods report. base.go drops packets that reach a pod without one of them by the link
// alone: link-local ones, those to groups, broadcast. A pod may have further addresses in its namespace, such as that of a
// bridge of its own, which no object names. What another pod of the node sends there passes: see "Paths beside these
// addresses" in docs/running.md.
package ruleset

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network/policy"
	"github.com/berthrun/berth/internal/sys/sysnet"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// DefaultName is the name of the tables of a node with one network.
const DefaultName = "berth-policy"

// Table is the tables of one network. It is for one goroutine.
type Table struct {
	name string
	// netns is the network namespace; nil is that of the calling thread.
	netns *os.File
	// applied is what the kernel has, by family; nil is unknown.
	applied map[nftables.TableFamily]*contents
	// generations reads the number of the last change of any rule; nil is a socket that is not open.
	generations *sysnet.Netlink
	// seen is that number when the tables were last known to be whole; 0 is unknown.
	seen uint32
}

// families are those of the tables.
func families() []nftables.TableFamily {
	return []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6}
}

// maxName is the length of a table's name in nftables.
const maxName = 255

// CheckName refuses names that nft could not name a table by: then nobody could list or remove the tables by hand. The
// error is kind Invalid.
func CheckName(name string) error {
	letter := func(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }
	for i, r := range name {
		if !letter(r) && (i == 0 || (r < '0' || r > '9') && !strings.ContainsRune("/-_.", r)) {
			return fmt.Errorf("%q cannot be the name of nftables tables: want a letter, then letters, digits, '/', '-', '_' and '.': %w", name, errs.Invalid)
		}
	}
	if name == "" || len(name) > maxName {
		return fmt.Errorf("%q cannot be the name of nftables tables: want 1 to %d bytes: %w", name, maxName, errs.Invalid)
	}
	return nil
}

// New returns tables of a name, and changes nothing. netns is the network namespace that they are in;
// nil is the one of this process.
func New(name string, netns *os.File) *Table { return &Table{name: name, netns: netns} }

// Close releases the table's socket. The rules stay.
func (t *Table) Close() error {
	if t.generations == nil {
		return nil
	}
	return t.generations.Close()
}

func (t *Table) in(family nftables.TableFamily) *nftables.Table {
	return &nftables.Table{Name: t.name, Family: family}
}

func (t *Table) open() (*nftables.Conn, error) {
	options := []nftables.ConnOption{nftables.WithSockOptions(largeBuffers)}
	if t.netns != nil {
		options = append(options, nftables.WithNetNSFd(int(t.netns.Fd())))
	}
	conn, err := nftables.New(options...)
	if err != nil {
		return nil, fmt.Errorf("cannot open the nftables socket: %w", err)
	}
	return conn, nil
}

// largeBuffers makes room for a whole transaction: it is one message, and the kernel acknowledges each
// part of it.
func largeBuffers[C interface {
	SetReadBuffer(bytes int) error
	SetWriteBuffer(bytes int) error
}](c C) error {
	const size = 32 << 20
	return errors.Join(c.SetWriteBuffer(size), c.SetReadBuffer(size))
}

// Apply makes the kernel enforce a model. The first call replaces the tables of an earlier process.
// When it fails, the kernel enforces at least what it did before, and the next call replaces the tables.
func (t *Table) Apply(m *policy.Model) error {
	conn, err := t.open()
	if err != nil {
		return err
	}
	next := map[nftables.TableFamily]*contents{}
	for _, family := range families() {
		next[family] = contentsOf(m, family == nftables.TableFamilyIPv4)
	}
	before := t.applied
	t.applied = nil
	if before == nil {
		err = t.replace(conn, next)
	} else {
		err = write(conn, t.name, before, next)
	}
	if err != nil {
		return err
	}
	// The next check compares: another program may have changed something right after the transaction.
	t.applied, t.seen = next, 0
	return nil
}

// replace replaces tables whose contents are unknown. While a transaction removes a chain of a hook and
// adds another, a packet may pass both without a rule: through the new one before the transaction, and
// through the old one after it. So a second pair of tables enforces the same rules meanwhile.
func (t *Table) replace(conn *nftables.Conn, next map[nftables.TableFamily]*contents) error {
	handover := t.name + handoverPart
	if err := write(conn, handover, nil, next); err != nil {
		return err
	}
	err := write(conn, t.name, nil, next)
	return errors.Join(err, remove(conn, handover))
}

// handoverPart ends the names of the tables that enforce a model while others are replaced.
const handoverPart = "-handover"

// write changes the tables of a name in one transaction; it replaces them if before is nil.
func write(conn *nftables.Conn, name string, before, next map[nftables.TableFamily]*contents) error {
	for _, family := range families() {
		change := transaction{conn: conn, table: &nftables.Table{Name: name, Family: family}}
		was := before[family]
		if before == nil {
			change.replaceTable()
			was = &contents{}
		}
		if err := change.queue(was, next[family]); err != nil {
			return fmt.Errorf("cannot write the nftables tables %s: %w", name, err)
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("cannot write the nftables tables %s: %w", name, explain(err))
	}
	return nil
}

// remove removes the tables of a name.
func remove(conn *nftables.Conn, name string) error {
	for _, family := range families() {
		table := &nftables.Table{Name: name, Family: family}
		conn.AddTable(table) // so that there is one to delete
		conn.DelTable(table)
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("cannot remove the nftables tables %s: %w", name, explain(err))
	}
	return nil
}

// Probe returns an error of kind errs.Unsupported if the kernel cannot hold rules of all kinds. It
// leaves nothing behind.
func (t *Table) Probe() error {
	conn, err := t.open()
	if err != nil {
		return err
	}
	for _, family := range families() {
		table := &nftables.Table{Name: t.name + "-probe", Family: family}
		first, last := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.9")
		if family == nftables.TableFamilyIPv6 {
			first, last = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::9")
		}
		m := &policy.Model{Grants: map[string]*policy.Grant{"probe": {Name: "probe", Rules: []policy.Rule{{
			Blocks: []policy.Range{{First: first, Last: last}}, Ports: []policy.PortRange{{Proto: unix.IPPROTO_TCP, First: 1, Last: 2}},
		}}}}}
		m.Isolated[policy.Ingress] = map[netip.Addr][]string{first: {"probe"}}
		change := transaction{conn: conn, table: table}
		change.replaceTable()
		if err := change.queue(&contents{}, contentsOf(m, family == nftables.TableFamilyIPv4)); err != nil {
			return err
		}
		conn.DelTable(table)
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("the kernel does not take the nftables rules of network policies: %w: %w", errs.Unsupported, explain(err))
	}
	return nil
}

// ProbeFrames returns an error of kind errs.Unsupported if the kernel has no tables of family bridge. The
// built-in network cannot check the sources of pods' packets then. It leaves nothing behind.
func (t *Table) ProbeFrames() error {
	conn, err := t.open()
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: t.name + "-probe", Family: nftables.TableFamilyBridge}
	conn.AddTable(table)
	conn.DelTable(table)
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("the kernel has no nftables of family bridge (nf_tables_bridge): a pod that may open raw sockets can send with the address of another pod, and has its rights: %w: %w", errs.Unsupported, explain(err))
	}
	return nil
}

// explain says what a kernel lacks.
func explain(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w; it needs CAP_NET_ADMIN: %w", err, errs.Unsupported)
	}
	return err
}

// Intact reports whether the kernel still has what Apply has written. Another program may have
// removed it (nft flush ruleset). If not, the next Apply replaces the tables. It compares only when
// some rule of the host has changed. After an error nothing is known, and the next call compares again.
func (t *Table) Intact() (bool, error) {
	if t.applied == nil {
		return false, nil
	}
	now, err := t.generation()
	if err != nil {
		return false, err
	}
	if now == t.seen {
		return true, nil
	}
	conn, err := t.open()
	if err != nil {
		return false, err
	}
	for _, family := range families() {
		whole, err := t.intactIn(conn, family)
		if err != nil {
			return false, err
		}
		if !whole {
			t.applied = nil
			return false, nil
		}
	}
	t.seen = now
	return true, nil
}

func (t *Table) generation() (uint32, error) {
	if t.generations == nil {
		open := func() (err error) {
			t.generations, err = sysnet.OpenNetlink(unix.NETLINK_NETFILTER)
			return err
		}
		inside := open
		if t.netns != nil {
			inside = func() error { return sysns.InNetNSFile(t.netns, open) }
		}
		if err := inside(); err != nil {
			return 0, fmt.Errorf("cannot open the nftables socket: %w", err)
		}
	}
	now, err := t.generations.NftablesGeneration()
	if err != nil {
		return 0, fmt.Errorf("cannot read the generation of the nftables rules: %w", err)
	}
	return now, nil
}

func (t *Table) intactIn(conn *nftables.Conn, family nftables.TableFamily) (bool, error) {
	tables, err := conn.ListTablesOfFamily(family)
	if err != nil {
		return false, fmt.Errorf("cannot list nftables tables: %w", err)
	}
	table := t.in(family)
	if !slices.ContainsFunc(tables, func(o *nftables.Table) bool { return o.Name == table.Name }) {
		return false, nil
	}
	rules := map[string]int{}
	for name, b := range t.applied[family].bases {
		rules[name] = len(b.rules)
	}
	for name, chain := range t.applied[family].chains {
		rules[name] = len(chain)
	}
	for name, want := range rules {
		have, err := conn.GetRules(table, &nftables.Chain{Name: name, Table: table})
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, fmt.Errorf("cannot list the rules of the nftables chain %s %s: %w", t.name, name, err)
		}
		if err != nil || len(have) != want {
			return false, nil
		}
	}
	for name, s := range t.applied[family].sets {
		described, err := s.describe(table, name)
		if err != nil {
			return false, err
		}
		have, err := conn.GetSetElements(described)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, fmt.Errorf("cannot list the nftables set %s %s: %w", t.name, name, err)
		}
		if err != nil || len(have) != s.size() {
			return false, nil
		}
	}
	return true, nil
}

// size is the number of elements that the kernel has for the set.
func (s *set) size() int {
	n := 0
	for key, value := range s.elements {
		n += len(s.element(key, value))
	}
	return n
}

// Remove removes the tables, and with it all isolation.
func (t *Table) Remove() error {
	conn, err := t.open()
	if err != nil {
		return err
	}
	t.applied = nil
	return errors.Join(remove(conn, t.name), remove(conn, t.name+handoverPart))
}

// transaction queues one change of one table.
type transaction struct {
	conn  *nftables.Conn
	table *nftables.Table
}

func (x transaction) replaceTable() {
	x.conn.AddTable(x.table) // so that there is one to delete
	x.conn.DelTable(x.table)
	x.conn.AddTable(x.table)
}

// queue queues the steps from one content to another: what is new, then what changes, then what
// nothing uses any more.
func (x transaction) queue(before, after *contents) error {
	for _, name := range slices.Sorted(maps.Keys(after.sets)) {
		if before.sets[name] != nil {
			continue
		}
		described, err := after.sets[name].describe(x.table, name)
		if err != nil {
			return err
		}
		if err := x.conn.AddSet(described, nil); err != nil {
			return err
		}
	}
	var added []string
	for _, name := range slices.SortedFunc(maps.Keys(after.chains), classesLast) {
		if _, there := before.chains[name]; !there {
			added = append(added, name)
			x.conn.AddChain(&nftables.Chain{Name: name, Table: x.table})
		}
	}
	for _, name := range added {
		for _, rule := range after.chains[name] {
			x.conn.AddRule(&nftables.Rule{Table: x.table, Chain: &nftables.Chain{Name: name, Table: x.table}, Exprs: rule})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(after.sets)) {
		if err := x.elements(name, before.sets[name], after.sets[name]); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(after.bases)) {
		if _, there := before.bases[name]; !there {
			x.addBase(name, after.bases[name])
		}
	}
	return x.cleanUp(before, after)
}

// classesLast sorts the chains that others jump to before those that jump.
func classesLast(a, b string) int {
	if aClass, bClass := strings.Contains(a, classPart), strings.Contains(b, classPart); aClass != bClass {
		if aClass {
			return 1
		}
		return -1
	}
	return strings.Compare(a, b)
}

// elements queues the difference between two contents of a set; before is nil for a new one.
func (x transaction) elements(name string, before, after *set) error {
	described, err := after.describe(x.table, name)
	if err != nil {
		return err
	}
	var remove, add []nftables.SetElement
	if before == nil {
		before = &set{}
	}
	for key, value := range before.elements {
		if now, stays := after.elements[key]; !stays || now != value {
			remove = append(remove, nftables.SetElement{Key: []byte(key)})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(after.elements)) {
		value := after.elements[key]
		if old, was := before.elements[key]; !was || old != value {
			add = append(add, after.element(key, value)...)
		}
	}
	if err := inParts(remove, func(part []nftables.SetElement) error { return x.conn.SetDeleteElements(described, part) }); err != nil {
		return err
	}
	return inParts(add, func(part []nftables.SetElement) error { return x.conn.SetAddElements(described, part) })
}

// inParts calls do with some elements at a time: an attribute of netlink ends at 64 KiB.
func inParts(all []nftables.SetElement, do func([]nftables.SetElement) error) error {
	for part := range slices.Chunk(all, 100) {
		if err := do(part); err != nil {
			return err
		}
	}
	return nil
}

func (x transaction) addBase(name string, b base) {
	chain := x.conn.AddChain(&nftables.Chain{Name: name, Table: x.table, Type: nftables.ChainTypeFilter, Hooknum: b.hook, Priority: &b.priority})
	for _, rule := range b.rules {
		x.conn.AddRule(&nftables.Rule{Table: x.table, Chain: chain, Exprs: rule})
	}
}

// cleanUp queues the removal of what the new content does not have: chains that jump before those
// that they jump to, and these before the sets that they use.
func (x transaction) cleanUp(before, after *contents) error {
	var gone []*nftables.Chain
	for name := range before.bases {
		if _, stays := after.bases[name]; !stays {
			gone = append(gone, &nftables.Chain{Name: name, Table: x.table})
		}
	}
	for name := range before.chains {
		if _, stays := after.chains[name]; !stays {
			gone = append(gone, &nftables.Chain{Name: name, Table: x.table})
		}
	}
	for _, chain := range gone {
		x.conn.FlushChain(chain)
	}
	for _, chain := range gone {
		x.conn.DelChain(chain)
	}
	for name, s := range before.sets {
		if after.sets[name] != nil {
			continue
		}
		described, err := s.describe(x.table, name)
		if err != nil {
			return err
		}
		x.conn.DelSet(described)
	}
	return nil
}
