// Package cni attaches sandboxes through the operator's CNI configuration: the
// first valid one of a directory, by name, as every other runtime picks it.
//
// It owns the records of attachments that plugins have added and not yet deleted. A
// record is written before the first ADD and holds its configuration, so that DEL gets
// the same one, also when the operator has changed it since. The record is removed only
// when DEL has succeeded. The package does not know what plugins do.
package cni

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/network/hostport"
	"github.com/berthrun/berth/internal/store"
)

// Config says where configurations and plugins are.
type Config struct {
	// ConfDir is the directory of configurations. It may be absent, appear later
	// and be replaced.
	ConfDir string
	// ConfDirOf returns the directory for pods of a runtime handler, "" for ConfDir. It is called for each pod.
	// Nil: all have ConfDir.
	ConfDirOf func(handler string) string
	// Template is the file of a template for a configuration in ConfDir, "" for none. See package
	// conftemplate.
	Template string
	// BinDirs are searched for plugins in this order.
	BinDirs []string
	// RootDir holds the records and, unless CacheDir is set, libcni's cache of
	// results. On disk: what plugins keep survives a reboot too.
	RootDir  string
	CacheDir string
	// StateDir holds what a reboot may take, on tmpfs. Empty means a directory below RootDir.
	StateDir string
	// FormerCacheDir is the cache of results of a former runtime, for Adopt.
	FormerCacheDir string
	// DelTimeout bounds one DEL; 0 means a minute.
	DelTimeout time.Duration
	// MaxNetworks is how many configurations are in use; a pod has a link in the network of
	// each. 0 means all.
	MaxNetworks int
	// Serially runs the ADDs of a pod's networks one after the other, and not at once.
	Serially bool
	// Preference orders a pod's addresses. An unknown one is a warning, and means IPv4First.
	Preference Preference
	// StatusGrace is how long plugins that could serve may answer STATUS otherwise before the
	// network is not ready.
	StatusGrace time.Duration
	// Retired is a network that only detaches what it has attached or adopted: its plugins
	// may serve another runtime, and it does not run CHECK and GC.
	Retired bool
	// AnyHostPorts attaches pods with host ports also where no plugin has the capability
	// to map them.
	AnyHostPorts bool
	// ProgramsOnly runs all plugins as programs, and none in process.
	ProgramsOnly bool
	// MaxProcesses is how many processes of one plugin's program run for pods at once; 0 means any number.
	MaxProcesses int
	// HostNetNS is the path of the network namespace that plugins are started in,
	// "" for the process's own.
	HostNetNS string
	// Observer counts calls of plugins and what they hold without a record, nil for nothing.
	Observer Observer
	Log      *slog.Logger
}

// Observer counts what plugins do. It must not block.
type Observer interface {
	// PluginCalled is called at the end of each call with the type of the plugin and the verb of CNI.
	PluginCalled(plugin, verb string, took time.Duration, err error)
	// LeakFound is called once with the kind of something that a plugin holds and no record has, "attachment" or
	// "address", LeakRepaired when the plugin has released it.
	LeakFound(kind string)
	LeakRepaired(kind string)
}

// unobserved counts nothing.
type unobserved struct{}

func (unobserved) PluginCalled(string, string, time.Duration, error) {}
func (unobserved) LeakFound(string)                                  {}
func (unobserved) LeakRepaired(string)                               {}

// Preference is which of a pod's addresses is the first: Kubernetes takes that for the pod's
// own, and the others for additional ones.
type Preference string

// The preferences, as containerd's ip_pref has them.
const (
	IPv4First  Preference = "ipv4"
	IPv6First  Preference = "ipv6"
	AsInResult Preference = "cni" // the order in which the plugins return them
)

// known reports whether there is such a preference.
func (p Preference) known() bool { return p == IPv4First || p == IPv6First || p == AsInResult }

// Network is the operator's network.
type Network struct {
	cfg      Config
	log      *slog.Logger
	confs    *confs
	template templated
	// ofHandlers are those of other directories than ConfDir: path to *confs.
	ofHandlers sync.Map
	exec       *executor
	lib        *libcni.CNIConfig
	records    *store.Dir[record]
	results    *store.Dir[added]
	ranges     *store.Dir[podRanges]
	good       *store.Dir[inUse]
	calls      network.SandboxCalls
	ports      hostport.Index
	status     *statusCache
	replays    *replayer
	upkeep     upkeep
}

var _ network.Plugged = (*Network)(nil)

// New reads the records and continues the DELs that an earlier process left unfinished.
// The first of them may run before New returns.
func New(_ context.Context, cfg Config) (*Network, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.DelTimeout == 0 {
		cfg.DelTimeout = time.Minute
	}
	if cfg.Preference != "" && !cfg.Preference.known() {
		cfg.Log.Warn("unknown preference of addresses; IPv4 addresses come first", "preference", cfg.Preference, "known", []Preference{IPv4First, IPv6First, AsInResult})
	}
	if !cfg.Preference.known() {
		cfg.Preference = IPv4First
	}
	if cfg.CacheDir == "" {
		cfg.CacheDir = filepath.Join(cfg.RootDir, "cache")
	}
	if cfg.StateDir == "" {
		cfg.StateDir = filepath.Join(cfg.RootDir, "state")
	}
	quarantine := filepath.Join(cfg.RootDir, "quarantine")
	records, bad, err := store.Open(store.Options[record]{
		Path: filepath.Join(cfg.RootDir, attachmentsDir), Quarantine: quarantine, Unsynced: true, KeepLost: filepath.Join(cfg.RootDir, lostDir),
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read the network's attachments: %w", err)
	}
	ranges, badRanges, err := store.Open(store.Options[podRanges]{Path: filepath.Join(cfg.RootDir, "ranges"), Quarantine: quarantine, Unsynced: true})
	if err != nil {
		return nil, fmt.Errorf("cannot read the node's pod ranges: %w", err)
	}
	good, badGood, err := store.Open(store.Options[inUse]{Path: filepath.Join(cfg.RootDir, "configuration"), Quarantine: quarantine, Unsynced: true})
	if err != nil {
		return nil, fmt.Errorf("cannot read which configuration was in use: %w", err)
	}
	for _, q := range badGood {
		if reportLost(cfg.Log, q) {
			continue
		}
		cfg.Log.Warn("moved a damaged record of the CNI configuration in use to the quarantine", "file", q.Path, "error", q.Err)
	}
	for _, q := range append(bad, badRanges...) {
		if reportLost(cfg.Log, q) {
			continue
		}
		cfg.Log.Warn("moved a damaged record of the network to the quarantine; the resources of its attachment may stay allocated",
			"file", q.Path, "error", q.Err)
	}
	exec := newExecutor(&cfg)
	n := &Network{
		exec: exec,
		cfg:  cfg, log: cfg.Log, records: records, ranges: ranges, good: good,
		calls: network.NewSandboxCalls(), status: newStatusCache(cfg.StatusGrace, cfg.Log),
		lib: libcni.NewCNIConfigWithCacheDir(cfg.BinDirs, cfg.CacheDir, resultKeeper{exec}),
	}
	n.confs = &confs{dir: cfg.ConfDir, max: cfg.MaxNetworks, log: cfg.Log, keep: n.keepInUse, refusal: n.refusal, began: n.warnOverlaps}
	if kept, err := good.Get(nodeID); err == nil {
		n.confs.restore(kept.Confs)
	}
	if err := n.openResults(quarantine); err != nil {
		return nil, fmt.Errorf("cannot read what CNI plugins have returned: %w", err)
	}
	if err := n.openTemplate(); err != nil {
		return nil, err
	}
	var incomplete []string
	for _, rec := range records.All() {
		if err := n.ports.Take(rec.holder(), rec.sockets()); err != nil {
			cfg.Log.Error("two attachments have one host port", "error", err)
		}
		if rec.Deleting || n.resultOf(rec) == nil {
			incomplete = append(incomplete, rec.Attachment.SandboxID)
		}
	}
	if ended := endPlugins(incomplete); ended > 0 {
		cfg.Log.Warn("killed processes of CNI plugins that an earlier berth had left", "processes", ended)
	}
	n.replays = startReplayer(n)
	return n, nil
}

// reportLost logs a record that a loss of power took, and reports whether it is one.
func reportLost(log *slog.Logger, q store.Quarantined) bool {
	if q.Lost {
		log.Info("removed the empty file of a record of the network; GC releases what plugins hold for it", "file", q.Path, "reason", q.Err)
	}
	return q.Lost
}

// confsOf returns the configurations for pods of a handler.
func (n *Network) confsOf(handler string) *confs {
	if n.cfg.ConfDirOf == nil {
		return n.confs
	}
	dir := n.cfg.ConfDirOf(handler)
	if dir == "" || dir == n.cfg.ConfDir {
		return n.confs
	}
	found, _ := n.ofHandlers.LoadOrStore(dir, &confs{dir: dir, max: 1, log: n.log, refusal: n.refusal, began: n.warnOverlaps})
	return found.(*confs)
}

// Ready is nil when there is a valid configuration, its plugins are installed and
// (from CNI 1.1 on) say that they can serve, or have said so within the grace period.
func (n *Network) Ready(ctx context.Context) error {
	n.followTemplate()
	confs, err := n.confs.current()
	if err != nil {
		return err
	}
	if err := n.status.check(ctx, confs, func() error { return n.askStatus(ctx, confs) }); err != nil {
		return fmt.Errorf("NetworkPluginNotReady: %w", err)
	}
	return nil
}

// keepInUse writes the configurations in use down.
func (n *Network) keepInUse(confs []goodConf) error {
	return keep(n.good, nodeID, func(now *inUse) { now.Confs = confs })
}

// keep changes the record of an id, or makes it. It is for one caller at a time.
func keep[T any](dir *store.Dir[T], id string, change func(*T)) error {
	_, err := dir.Update(id, func(value *T) error { change(value); return nil })
	if errors.Is(err, errs.NotFound) {
		value := new(T)
		change(value)
		err = dir.Create(id, value)
	}
	return err
}

// Info says which configuration is in use.
func (n *Network) Info() map[string]string {
	info := map[string]string{"mode": "cni", "confDir": n.cfg.ConfDir, "binDirs": strings.Join(n.cfg.BinDirs, ":")}
	confs, fault := n.confs.look()
	if fault != nil {
		info["error"] = fault.Error()
	}
	var files, names, versions, plugins []string
	for _, conf := range confs {
		files, names, versions = append(files, conf.file), append(names, conf.list.Name), append(versions, conf.list.CNIVersion)
		for _, p := range conf.list.Plugins {
			plugins = append(plugins, p.Network.Type)
		}
	}
	if len(confs) > 0 {
		info["config"], info["network"] = strings.Join(files, ","), strings.Join(names, ",")
		info["cniVersion"], info["plugins"] = strings.Join(versions, ","), strings.Join(plugins, ",")
	}
	attached, deleting := 0, 0
	for _, rec := range n.records.All() {
		if rec.Deleting {
			deleting++
		} else {
			attached++
		}
	}
	info["attachments"] = fmt.Sprint(attached)
	if deleting > 0 {
		info["pendingDeletes"] = fmt.Sprint(deleting)
	}
	n.upkeep.addTo(info)
	return info
}

// podRanges are the node's pod ranges, which the kubelet sends once and not again
// when only berth restarts.
type podRanges struct {
	Ranges []netip.Prefix `json:"ranges"`
}

// nodeID is the id of records of which the node has one.
const nodeID = "node"

// SetPodCIDR keeps the ranges for plugins that have the ipRanges capability, and for the template
// of the configuration.
func (n *Network) SetPodCIDR(_ context.Context, cidr string) error {
	var ranges []netip.Prefix
	for text := range strings.SplitSeq(cidr, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("pod CIDR %q is no subnet: %w", text, errs.Invalid)
		}
		ranges = append(ranges, p.Masked())
	}
	if len(ranges) == 0 {
		return nil
	}
	if err := keep(n.ranges, nodeID, func(r *podRanges) { r.Ranges = ranges }); err != nil {
		return fmt.Errorf("cannot write down the node's pod ranges: %w", err)
	}
	return n.applyTemplate()
}

// Close stops the retries of failed DELs, which the next start continues, and the work in the
// background.
func (n *Network) Close() error {
	n.upkeep.stop()
	n.replays.stop()
	return nil
}
