// Package builtin is berth's own pod network: one bridge per instance, one veth
// pair per sandbox, addresses of both families, and masquerade and host ports in
// an nftables table that belongs to the instance alone.
//
// It owns the bridge, the table, the links on the bridge and the rules that it
// puts into a foreign firewall which would drop its traffic. All names derive from
// the instance. It knows nothing of sandboxes beyond their id and network
// namespace.
//
// A reboot ends everything here, so the records of attachments are on tmpfs; only the
// choice of subnets survives a reboot.
package builtin

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/network/builtin/hostfirewall"
	"github.com/berthrun/berth/internal/network/hostport"
	"github.com/berthrun/berth/internal/network/noderoutes"
	"github.com/berthrun/berth/internal/network/rulesetwatch"
	"github.com/berthrun/berth/internal/store"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Config configures the network.
type Config struct {
	// Instance is the name of this berth among those on the host; "" and "default" are the
	// default one.
	Instance string
	// StateDir holds the records of attachments; it is emptied by a reboot.
	StateDir string
	// RootDir holds the choice of subnets and the quarantine.
	RootDir string
	// Bridge is the bridge's name, "" to derive it from the instance.
	Bridge string
	// Subnets has at most one subnet of each family. Empty: both are chosen so
	// that they overlap nothing that the host has an address in or a route to.
	Subnets []netip.Prefix
	// AwaitPodCIDR: where Subnets is empty, none is chosen. The network is not ready until
	// SetPodCIDR sets one, which is kept for later starts.
	AwaitPodCIDR bool
	// Cluster are the subnets of pods of other nodes, which pods reach with their own address.
	Cluster []netip.Prefix
	// RoutesFile has the routes to the pods of other nodes, "" for none: package noderoutes follows it.
	RoutesFile string
	// Taken reports whether an address of the subnets belongs to a pod that is not on this network,
	// nil for none: pods of a former runtime keep theirs.
	Taken func(netip.Addr) bool
	// Hairpin is how a pod reaches itself through a service or a host port, "" for HairpinVeth.
	Hairpin Hairpin
	// Mode is what Info reports as the mode, "builtin" if empty.
	Mode string
	// MTU of the pods' links, 0 for that of the host's default route.
	MTU int
	// HostNetNS is the path of the host's network namespace, "" for that of the thread that
	// calls New.
	HostNetNS string
	// CNIConfDir is where Info looks for a CNI configuration, to report that it is not in use;
	// "" for no look.
	CNIConfDir string
	Log        *slog.Logger
	// After, if not nil, is closed when the opening may begin: it takes processor time from what is more urgent at
	// a start.
	After <-chan struct{}
}

// Hairpin is how a pod reaches itself through a service or a host port, where the host applies
// its rules to bridged traffic (bridge-nf-call-iptables): the packet leaves by the port of the
// bridge that it came in by. Without such rules the host routes the packet, and a pod always
// reaches itself.
type Hairpin string

// The ways. Their names are those of the kubelet.
const (
	// HairpinNone: it does not.
	HairpinNone Hairpin = "none"
	// HairpinVeth: the ports of the bridge are in hairpin mode.
	HairpinVeth Hairpin = "hairpin-veth"
	// PromiscuousBridge: the host also gets a copy of each frame, which it routes. On current
	// kernels (measured: 6.18) a copy has lost its connection, and so its translation: the ports
	// are in hairpin mode as well. Copies that the host would send to pods a second time are dropped.
	PromiscuousBridge Hairpin = "promiscuous-bridge"
)

func (h Hairpin) check() error {
	switch h {
	case "", HairpinNone, HairpinVeth, PromiscuousBridge:
		return nil
	}
	return fmt.Errorf("hairpin mode %q: want one of %s, %s, %s: %w", string(h), HairpinNone, HairpinVeth, PromiscuousBridge, errs.Invalid)
}

// ports reports whether the ports of the bridge are in hairpin mode.
func (h Hairpin) ports() bool { return h != HairpinNone }

// Network is the built-in network.
type Network struct {
	cfg     Config
	log     *slog.Logger
	host    *host
	records *store.Dir[record]
	chosen  *store.Dir[subnetChoice]
	table   *table
	fire    *hostfirewall.Firewall
	reaper  *reaper
	watch   *rulesetwatch.Watch
	routes  *noderoutes.Follower
	calls   network.SandboxCalls
	ports   hostport.Index

	// opened is closed when the network is open, or cannot be opened. failure is the reason then, and cancel ends the
	// wait for Config.After. All but cfg, log, host, calls and notes belongs to the opening until then.
	opened  chan struct{}
	failure error
	cancel  context.CancelFunc

	// mu guards what follows; it is never held over a wait.
	mu      sync.Mutex
	subnets []netip.Prefix
	pools   []*pool
	notes   map[string]string

	// repairing lets one repair of bridge, table and firewall run at a time.
	repairing sync.Mutex
}

var _ network.Network = (*Network)(nil)

// New is Start, and returns when the network is open.
func New(ctx context.Context, cfg Config) (*Network, error) {
	n, err := Start(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := n.Await(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Start opens the network in the background, unless ctx ends before Config.After: it reads the records, makes or repairs bridge and table,
// and continues the releases that an earlier process left unfinished. Most of that grows with the number of pods,
// and nobody who lists pods needs it. All methods wait for it, and Await reports the end.
func Start(ctx context.Context, cfg Config) (*Network, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Bridge == "" {
		cfg.Bridge = BridgeName(cfg.Instance)
	}
	if err := cfg.Hairpin.check(); err != nil {
		return nil, err
	}
	n := &Network{cfg: cfg, log: cfg.Log, calls: network.NewSandboxCalls(), notes: map[string]string{}, opened: make(chan struct{})}
	var err error
	if n.host, err = openHost(cfg.HostNetNS); err != nil { // the thread may be in another namespace than those of the opening
		return nil, err
	}
	ctx, n.cancel = context.WithCancel(ctx)
	go func() {
		n.failure = errs.Guard("opening of the built-in network", func() error { return n.openAll(ctx) })
		close(n.opened)
	}()
	return n, nil
}

// Await returns when the network is open, or the reason why it cannot be opened.
func (n *Network) Await(ctx context.Context) error {
	select {
	case <-n.opened:
		return n.failure
	default:
	}
	select {
	case <-n.opened:
		return n.failure
	case <-ctx.Done():
		return fmt.Errorf("the built-in network is still being opened: %w", context.Cause(ctx))
	}
}

// ready is Await for a request. The kind of a failure is not that of the request's own answer.
func (n *Network) ready(ctx context.Context) error {
	err := n.Await(ctx)
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("the built-in network could not be opened: %v: %w", err, errs.Unavailable) //nolint:errorlint // not of the cause's kind
	}
	return err
}

// openAll has the steps of the opening. After an error nothing is open.
func (n *Network) openAll(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, n.host.close())
		}
	}()
	if err := n.awaitTurn(ctx); err != nil {
		return err
	}
	// A daemon that stops now needs all of it: Close removes what is on the host if nothing is attached.
	ctx = context.WithoutCancel(ctx)
	if err := n.load(); err != nil {
		return err
	}
	if err := n.adoptLinks(); err != nil {
		return err
	}
	// Before the choice of subnets, which avoids those that the host has routes to.
	if err := n.followRoutes(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.routes.Close())
		}
	}()
	if err := n.settleSubnets(); err != nil {
		return err
	}
	if err := n.host.do(func() error { return n.open(ctx) }); err != nil {
		return err
	}
	if err := n.host.do(n.watchRuleset); err != nil {
		return err
	}
	n.reaper = startReaper(n)
	for _, rec := range n.records.All() {
		if rec.Released {
			n.reaper.add(rec.Sandbox)
		}
	}
	return nil
}

// awaitTurn waits until the opening may begin.
func (n *Network) awaitTurn(ctx context.Context) error {
	if n.cfg.After == nil {
		return nil
	}
	select {
	case <-n.cfg.After:
		return nil
	default:
	}
	select {
	case <-n.cfg.After:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// open makes what needs a thread in the host's namespace.
func (n *Network) open(ctx context.Context) error {
	t, err := openTable(TableName(n.cfg.Instance), n.cfg.Bridge)
	if err != nil {
		return err
	}
	n.table = t
	t.cluster, t.promiscuous = n.cfg.Cluster, n.cfg.Hairpin == PromiscuousBridge
	if !t.probeFrames() {
		n.notes["sources"] = "the kernel has no nftables of family bridge (nf_tables_bridge): pods that may open raw sockets can send with the addresses of others"
		n.log.Warn("cannot check the sources of pods' packets", "error", n.notes["sources"])
		if t.promiscuous {
			n.notes["copies"] = "the kernel has no nftables of family bridge (nf_tables_bridge): pods may get packets twice from the promiscuous bridge"
			n.log.Warn("cannot drop the copies of a promiscuous bridge", "error", n.notes["copies"])
		}
	}
	n.fire = hostfirewall.New(n.cfg.Bridge, TableName(n.cfg.Instance), n.log)
	if n.awaiting() != nil {
		return nil
	}
	if err := n.build(); err != nil {
		return err
	}
	n.fire.EnsureLegacy(ctx)
	return nil
}

// followRoutes makes the routes to the pods of other nodes.
func (n *Network) followRoutes() (err error) {
	n.routes, err = noderoutes.Follow(noderoutes.Config{
		File: n.cfg.RoutesFile, StateDir: n.cfg.StateDir, Quarantine: filepath.Join(n.cfg.RootDir, "quarantine"),
		Handle: n.host.handle, Log: n.log,
		Subnets: func() []netip.Prefix {
			n.mu.Lock()
			defer n.mu.Unlock()
			if len(n.subnets) == 0 {
				return n.cfg.Subnets // they are not settled yet
			}
			return n.subnets
		},
	})
	return err
}

// awaiting is the reason why nothing can be attached before SetPodCIDR was called.
func (n *Network) awaiting() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.subnets) > 0 {
		return nil
	}
	return fmt.Errorf("the kubelet has not sent the node's pod CIDR yet: %w", errs.Unavailable)
}

// load reads the records. Those that cannot be read go to the quarantine.
func (n *Network) load() error {
	quarantine := filepath.Join(n.cfg.RootDir, "quarantine")
	records, bad, err := store.Open(store.Options[record]{
		Path: filepath.Join(n.cfg.StateDir, attachmentsDir), Quarantine: quarantine,
	})
	if err != nil {
		return fmt.Errorf("cannot read the network's attachments: %w", err)
	}
	chosen, badChoice, err := store.Open(store.Options[subnetChoice]{
		Path: filepath.Join(n.cfg.RootDir, "subnets"), Quarantine: quarantine, Unsynced: true,
	})
	if err != nil {
		return fmt.Errorf("cannot read the network's choice of subnets: %w", err)
	}
	n.records, n.chosen = records, chosen
	for _, q := range slices.Concat(bad, badChoice) {
		if q.Lost {
			n.log.Info("removed the empty file of the network's choice of subnets; it is made again", "file", q.Path, "reason", q.Err)
			continue
		}
		n.log.Warn("moved a damaged record of the network to the quarantine",
			"file", q.Path, "error", q.Err)
	}
	boot, err := sysproc.BootID()
	if err != nil {
		return err
	}
	for _, rec := range records.All() {
		// Nothing of an attachment survives a reboot.
		if rec.BootID != boot {
			if err := records.Delete(rec.Sandbox); err != nil {
				return err
			}
		}
	}
	return nil
}

// Ready repairs what is missing, and returns what cannot be repaired.
func (n *Network) Ready(ctx context.Context) error {
	if err := n.ready(ctx); err != nil {
		return err
	}
	n.routes.Check() // Info has what is missing: pods of this node reach each other without
	if err := n.host.do(func() error { return n.repair(ctx, true) }); err != nil {
		return fmt.Errorf("the built-in network is not ready: %w", err)
	}
	return nil
}

// Info describes the network, for people.
func (n *Network) Info() map[string]string {
	mode := cmp.Or(n.cfg.Mode, "builtin")
	if err := n.ready(context.Background()); err != nil {
		return map[string]string{"mode": mode, "fault": errs.Message(err)}
	}
	firewall := n.fire.Note()
	n.mu.Lock()
	defer n.mu.Unlock()
	info := map[string]string{
		"mode":        mode,
		"hairpin":     string(cmp.Or(n.cfg.Hairpin, HairpinVeth)),
		"bridge":      n.cfg.Bridge,
		"table":       "inet " + n.table.name,
		"subnets":     joinPrefixes(n.subnets),
		"mtu":         strconv.Itoa(n.host.mtu()),
		"attachments": strconv.Itoa(len(n.records.IDs())),
	}
	n.routes.AddTo(info)
	if n.table.frames != nil {
		info["frameTable"] = "bridge " + n.table.name
	}
	for key, note := range n.notes {
		info[key] = note
	}
	if firewall != "" {
		info["firewall"] = firewall
	}
	if conf := firstConf(n.cfg.CNIConfDir); conf != "" {
		info["cni"] = conf + " is not in use: network mode is builtin"
	}
	return info
}

// Close ends the background work, also an opening. When no sandbox is attached it removes all that
// the network has made on the host.
func (n *Network) Close() error {
	n.cancel()
	<-n.opened
	if n.failure != nil {
		return nil // nothing is open
	}
	n.reaper.stop()
	errList := []error{n.watch.Close(), n.routes.Close()}
	ctx := context.Background()
	_, err := n.finishReleases(ctx)
	errList = append(errList, err)
	if len(n.records.IDs()) == 0 {
		errList = append(errList, n.host.do(func() error { return n.removeAll(ctx) }))
	}
	return errors.Join(append(errList, n.table.close(), n.host.close())...)
}

// removeAll removes bridge, table, the rules in the host's firewall and the routes to other nodes.
func (n *Network) removeAll(context.Context) error {
	n.repairing.Lock()
	defer n.repairing.Unlock()
	return errors.Join(n.fire.Remove(), n.table.remove(), n.host.removeBridge(n.cfg.Bridge), n.routes.Remove())
}

func joinPrefixes(prefixes []netip.Prefix) string {
	text := make([]string, 0, len(prefixes))
	for _, p := range prefixes {
		text = append(text, p.String())
	}
	return strings.Join(text, ",")
}

// firstConf is the first CNI configuration in dir, "" when there is none.
func firstConf(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".conflist", ".conf", ".json":
			return filepath.Join(dir, e.Name())
		}
	}
	return ""
}

// instanceHash is the part of every derived name that is the instance's own, "" for the default
// instance.
func instanceHash(instance string) string {
	if instance == "" || instance == "default" {
		return ""
	}
	sum := sha256.Sum256([]byte("berth instance " + instance))
	return hex.EncodeToString(sum[:5])
}

// BridgeName is the name of an instance's bridge, unless Config.Bridge is set.
func BridgeName(instance string) string {
	if hash := instanceHash(instance); hash != "" {
		return "br-" + hash
	}
	return "berth0"
}

// TableName is the name of an instance's tables of nftables, of the families inet and bridge.
func TableName(instance string) string {
	if hash := instanceHash(instance); hash != "" {
		return tablePrefix + "-" + hash
	}
	return tablePrefix
}
