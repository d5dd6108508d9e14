// Package hostfirewall lets the pods' forwarded traffic through other firewalls on the host.
package hostfirewall

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/google/nftables/xt"

	"github.com/berthrun/berth/internal/network/builtin/nftexpr"
)

// Firewall keeps accept rules in chains of others that would drop the pods' traffic. The kernel
// forwards a packet only when no chain drops it, so an accept in berth's own table is not enough.
// Where a foreign chain drops all packets that no rule accepts (docker, ufw and firewalld make such
// chains), Ensure inserts rules at its head: they accept packets from the bridge, and packets to
// the bridge that are answers or came through a host port. The rules have a tag. Ensure and EnsureLegacy insert
// them again when they are gone; Remove removes them.
//
// Its methods are safe for concurrent use.
type Firewall struct {
	bridge string
	tag    string
	log    *slog.Logger
	// legacyTables lists those of the calling thread's network namespace.
	legacyTables func() []legacyTable

	// mu guards what follows; it is never held over a program.
	mu            sync.Mutex
	chains        outcome // of nftables
	legacy        outcome // of iptables-legacy
	dirty         bool    // the host's rules have changed since the last check
	checked       time.Time
	legacyChecked time.Time

	// programs lets one check of legacy tables run at a time.
	programs sync.Mutex
}

// outcome is what came of a check.
type outcome struct {
	opened  []string // chains with our rules
	refused []string // chains that we could not change, with the reason
}

const (
	// CheckPause is the least time between two checks that attachments wait for: other users
	// of nftables may change their rules all the time, and have thousands.
	CheckPause = 5 * time.Second
	// legacyAge is how long a check of legacy tables holds: they announce no changes.
	legacyAge = 30 * time.Second
)

// New returns a Firewall for the traffic of a bridge. The tag of its rules contains the name of
// the network's nftables table.
func New(bridge, table string, log *slog.Logger) *Firewall {
	return &Firewall{bridge: bridge, tag: "berth network " + table, log: log, legacyTables: legacyTables}
}

// Ensure inserts our rules where they are needed and missing in nftables. A chain that refuses them is no
// error, since pods that only talk to each other need no forwarding: Note reports it. The calling
// thread is in the host's network namespace.
func (f *Firewall) Ensure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("cannot open an nftables socket: %w", err)
	}
	chains, err := conn.ListChains()
	if err != nil {
		return fmt.Errorf("cannot list the host's nftables chains: %w", err)
	}
	f.dirty = false
	var now outcome
	for _, c := range chains {
		if !forwards4or6(c) {
			continue
		}
		rules, err := conn.GetRules(c.Table, c)
		if err != nil {
			continue // gone since it was listed
		}
		if count := f.tagged(rules); count > 0 || drops(c, rules) {
			now.add(chainName(c), f.insert(conn, c, rules, count))
		}
	}
	f.report(&f.chains, now)
	f.checked = time.Now()
	return nil
}

// EnsureLegacy does what Ensure does in the tables of iptables-legacy, which announce no changes: where the last check is
// older than legacyAge. Its programs wait for a lock that others may hold, up to 10 seconds in all. So no attachment
// waits for it, and a second call returns at once. The calling thread is in the host's network namespace.
func (f *Firewall) EnsureLegacy(ctx context.Context) {
	if !f.programs.TryLock() {
		return
	}
	defer f.programs.Unlock()
	f.mu.Lock()
	age := time.Since(f.legacyChecked)
	f.mu.Unlock()
	if age < legacyAge {
		return
	}
	var now outcome
	for _, legacy := range f.legacyTables() {
		now.add(legacy.name(), legacy.ensure(ctx, f.bridge, f.tag))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.report(&f.legacy, now)
	f.legacyChecked = time.Now() // and not that of the begin: a lock that is held would be waited for without a pause
}

// report keeps what came of a check, and logs a change of what was refused. The caller holds f.mu.
func (f *Firewall) report(last *outcome, now outcome) {
	if len(now.refused) > 0 && !slices.Equal(last.refused, now.refused) {
		f.log.Warn("cannot change a firewall on the host that drops the pods' traffic",
			"bridge", f.bridge, "chains", now.refused)
	}
	*last = now
}

// Due reports whether Ensure should run again. changed: the host's rules have changed since the
// last call of Due; thorough: no attachment waits for it.
func (f *Firewall) Due(changed, thorough bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dirty = f.dirty || changed
	return f.dirty && (thorough || time.Since(f.checked) > CheckPause)
}

// Pending reports whether the host's rules have changed since Ensure ran, so that Ensure is due
// CheckPause after that.
func (f *Firewall) Pending() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dirty
}

// add keeps what came of a chain for Note. errNotNeeded is nothing.
func (o *outcome) add(chain string, err error) {
	switch {
	case errors.Is(err, errNotNeeded):
	case err != nil:
		o.refused = append(o.refused, fmt.Sprintf("%s (%v)", chain, err))
	default:
		o.opened = append(o.opened, chain)
	}
}

// errNotNeeded: the chain lets our traffic pass.
var errNotNeeded = errors.New("not needed")

// insert puts our rules before all others, unless they are there already.
func (f *Firewall) insert(conn *nftables.Conn, c *nftables.Chain, rules []*nftables.Rule, present int) error {
	wanted := f.rules(c)
	if present == len(wanted) {
		return nil
	}
	for _, r := range rules {
		if f.ours(r) {
			if err := conn.DelRule(r); err != nil {
				return err
			}
		}
	}
	for _, exprs := range wanted {
		conn.InsertRule(&nftables.Rule{
			Table: c.Table, Chain: c, Exprs: exprs,
			UserData: userdata.AppendString(nil, userdata.TypeComment, f.tag),
		})
	}
	return conn.Flush()
}

// rules returns the rules that our traffic needs in a chain.
func (f *Firewall) rules(c *nftables.Chain) [][]expr.Any {
	answers := slices.Concat(nftexpr.MatchLink(expr.MetaKeyOIFNAME, f.bridge, true), nftexpr.MatchEstablished(), nftexpr.Accept())
	mapped := slices.Concat(nftexpr.MatchLink(expr.MetaKeyOIFNAME, f.bridge, true), nftexpr.MatchDNAT(), nftexpr.Accept())
	out := slices.Concat(nftexpr.MatchLink(expr.MetaKeyIIFNAME, f.bridge, true), nftexpr.Accept())
	if !madeByIptables(c) {
		return [][]expr.Any{mapped, answers, out}
	}
	// iptables lists only what it could have written itself.
	comment := xt.Comment(f.tag)
	tag := &expr.Match{Name: "comment", Info: &comment}
	known := &expr.Match{Name: "conntrack", Rev: 3, Info: &xt.ConntrackMtinfo3{ConntrackMtinfo2: xt.ConntrackMtinfo2{
		ConntrackMtinfoBase: xt.ConntrackMtinfoBase{MatchFlags: uint16(xt.ConntrackState)},
		StateMask:           xtEstablished | xtRelated | xtDNAT,
	}}}
	return [][]expr.Any{
		slices.Concat(nftexpr.MatchLink(expr.MetaKeyOIFNAME, f.bridge, true), []expr.Any{known, tag, &expr.Counter{}}, nftexpr.Accept()),
		slices.Concat(nftexpr.MatchLink(expr.MetaKeyIIFNAME, f.bridge, true), []expr.Any{tag, &expr.Counter{}}, nftexpr.Accept()),
	}
}

// Bits of the conntrack match's state mask.
const (
	xtEstablished = 1 << 1
	xtRelated     = 1 << 2
	xtDNAT        = 1 << 7
)

// Remove removes our rules from every chain. The calling thread is in the host's network
// namespace.
func (f *Firewall) Remove() error {
	f.programs.Lock()
	defer f.programs.Unlock()
	var errList []error
	for _, legacy := range f.legacyTables() {
		errList = append(errList, legacy.remove(f.bridge, f.tag))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	conn, err := nftables.New()
	if err != nil {
		return errors.Join(append(errList, fmt.Errorf("cannot open an nftables socket: %w", err))...)
	}
	chains, err := conn.ListChains()
	if err != nil {
		return errors.Join(append(errList, fmt.Errorf("cannot list the host's nftables chains: %w", err))...)
	}
	for _, c := range chains {
		if forwards4or6(c) {
			errList = append(errList, f.removeFrom(conn, c))
		}
	}
	f.chains, f.legacy = outcome{}, outcome{}
	return errors.Join(errList...)
}

func (f *Firewall) removeFrom(conn *nftables.Conn, c *nftables.Chain) error {
	rules, err := conn.GetRules(c.Table, c)
	if err != nil || f.tagged(rules) == 0 {
		return nil // a chain that is gone has no rules of ours
	}
	for _, r := range rules {
		if f.ours(r) {
			if err := conn.DelRule(r); err != nil {
				return err
			}
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("cannot remove berth's rules from chain %s: %w", chainName(c), err)
	}
	return nil
}

// Note describes for people which chains have our rules and which refused them, "" for none.
func (f *Firewall) Note() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var parts []string
	if opened := slices.Concat(f.chains.opened, f.legacy.opened); len(opened) > 0 {
		parts = append(parts, "accept rules for "+f.bridge+" in "+strings.Join(opened, ", "))
	}
	if refused := slices.Concat(f.chains.refused, f.legacy.refused); len(refused) > 0 {
		parts = append(parts, "forwarded traffic of "+f.bridge+" is dropped by "+strings.Join(refused, ", "))
	}
	return strings.Join(parts, "; ")
}

func (f *Firewall) tagged(rules []*nftables.Rule) (count int) {
	for _, r := range rules {
		if f.ours(r) {
			count++
		}
	}
	return count
}

func (f *Firewall) ours(r *nftables.Rule) bool {
	comment, _ := userdata.GetString(r.UserData, userdata.TypeComment)
	return comment == f.tag
}

// forwards4or6 reports whether a chain filters what the host forwards.
func forwards4or6(c *nftables.Chain) bool {
	switch c.Table.Family {
	case nftables.TableFamilyINet, nftables.TableFamilyIPv4, nftables.TableFamilyIPv6:
		return c.Hooknum != nil && *c.Hooknum == *nftables.ChainHookForward && c.Type == nftables.ChainTypeFilter
	}
	return false
}

// madeByIptables reports whether a chain is iptables' own, by its name.
func madeByIptables(c *nftables.Chain) bool {
	return c.Table.Family != nftables.TableFamilyINet && c.Table.Name == "filter" && c.Name == "FORWARD"
}

func chainName(c *nftables.Chain) string {
	families := map[nftables.TableFamily]string{
		nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
	}
	return families[c.Table.Family] + " " + c.Table.Name + " " + c.Name
}

// drops reports whether a chain drops the packets that none of its rules accepts: by its policy,
// or by a rule without conditions.
func drops(c *nftables.Chain, rules []*nftables.Rule) bool {
	if c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
		return true
	}
	return slices.ContainsFunc(rules, func(r *nftables.Rule) bool {
		for _, e := range r.Exprs {
			switch e := e.(type) {
			case *expr.Counter, *expr.Log:
			case *expr.Reject:
				return true
			case *expr.Verdict:
				return e.Kind == expr.VerdictDrop
			case *expr.Target:
				return e.Name == "REJECT" || e.Name == "DROP"
			default:
				return false // a condition
			}
		}
		return false
	})
}
