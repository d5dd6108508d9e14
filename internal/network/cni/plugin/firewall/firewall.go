// Package firewall is the CNI plugin firewall with its backend iptables: the host forwards what
// pods send, and what belongs to it. The backend firewalld is for the reference's program.
package firewall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/utils"
	"github.com/coreos/go-iptables/iptables"
	"github.com/godbus/dbus/v5"

	"github.com/berthrun/berth/internal/network/cni/plugin"
	"github.com/berthrun/berth/internal/network/cni/plugin/xtables"
)

const (
	table        = "filter"
	forward      = "FORWARD"
	ownChain     = "CNI-FORWARD"
	defaultAdmin = "CNI-ADMIN"
	// firewalld is its name on the system bus.
	firewalld  = "org.fedoraproject.FirewallD1"
	busTimeout = time.Second
)

// conf is the plugin's configuration.
type conf struct {
	types.NetConf
	Backend       string `json:"backend"`
	AdminChain    string `json:"iptablesAdminChainName"`
	IngressPolicy string `json:"ingressPolicy"`

	previous *types100.Result // nil for none
}

// New returns the plugin.
func New() *plugin.Plugin {
	return &plugin.Plugin{
		Type: "firewall", Chained: true, Versions: version.VersionsStartingFrom("0.4.0"), Add: add, Del: del, Check: check, Other: other, Here: here,
		Load:    plugin.Loads(load),
		Options: plugin.Options{"backend": nil, "iptablesAdminChainName": nil, "firewalldZone": nil, "ingressPolicy": nil},
	}
}

const noFirewalld = `has no backend "firewalld"`

// other reports that the backend is firewalld by its name.
func other(config []byte) string {
	if backendOf(config) == "firewalld" {
		return noFirewalld
	}
	return ""
}

// here reports that the backend is firewalld because it runs and iptables is not named.
func here(config []byte) string {
	if backendOf(config) != "iptables" && firewalldRuns() {
		return noFirewalld
	}
	return ""
}

// backendOf returns the backend that a configuration names; the verb reports one that cannot be read.
func backendOf(config []byte) string {
	var n struct {
		Backend string `json:"backend"`
	}
	if json.Unmarshal(config, &n) != nil {
		return "iptables"
	}
	return n.Backend
}

// firewalldRuns asks the system bus. Without a bus, or one that answers, there is no firewalld.
func firewalldRuns() bool {
	ctx, cancel := context.WithTimeout(context.Background(), busTimeout)
	defer cancel()
	bus, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return false
	}
	defer bus.Close()
	var owner string
	return bus.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.GetNameOwner", 0, firewalld).Store(&owner) == nil
}

func load(c *plugin.Call) (*conf, error) {
	n := &conf{AdminChain: defaultAdmin}
	if err := json.Unmarshal(c.Config, n); err != nil {
		return nil, fmt.Errorf("failed to load netconf: %w", err)
	}
	if n.AdminChain == "" {
		n.AdminChain = defaultAdmin
	}
	var err error
	if n.previous, err = plugin.ChainedPrevious(&n.NetConf); err != nil {
		return nil, err
	}
	return n, nil
}

// family is the iptables of one family, and the pod's addresses in it.
type family struct {
	*iptables.IPTables
	addresses []string
}

// families returns both.
func (n *conf) families() ([]*family, error) {
	var all []*family
	for _, v6 := range []bool{false, true} {
		ipt, err := xtables.Open(v6)
		if err != nil {
			protocol := iptables.ProtocolIPv4
			if v6 {
				protocol = iptables.ProtocolIPv6
			}
			return nil, fmt.Errorf("could not initialize iptables protocol %v: %w", protocol, err)
		}
		f := &family{IPTables: ipt}
		if n.previous != nil {
			for _, address := range n.previous.IPs {
				if (address.Address.IP.To4() == nil) == v6 {
					f.addresses = append(f.addresses, alone(address.Address.IP))
				}
			}
		}
		all = append(all, f)
	}
	return all, nil
}

// alone is an address as a subnet of its own.
func alone(ip net.IP) string {
	if ip.To4() == nil {
		return ip.String() + "/128"
	}
	return ip.String() + "/32"
}

// rules let through what belongs to connections of the pod, and all that it sends.
func (f *family) rules() [][]string {
	var all [][]string
	for _, address := range f.addresses {
		all = append(all,
			[]string{"-d", address, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"},
			[]string{"-s", address, "-j", "ACCEPT"})
	}
	return all
}

func ownJump() []string {
	return []string{"-m", "comment", "--comment", "CNI firewall plugin rules", "-j", ownChain}
}

func (n *conf) adminJump() []string {
	return []string{"-m", "comment", "--comment", "CNI firewall plugin admin overrides", "-j", n.AdminChain}
}

// ensureChains makes the chains.
func (n *conf) ensureChains(f *family) error {
	for _, name := range []string{ownChain, n.AdminChain} {
		if err := utils.EnsureChain(f.IPTables, table, name); err != nil {
			return err
		}
	}
	return nil
}

func add(_ context.Context, c *plugin.Call) (types.Result, error) {
	n, err := load(c)
	if err != nil {
		return nil, err
	}
	if n.previous == nil {
		return nil, errors.New("missing prevResult from earlier plugin")
	}
	families, err := n.families()
	if err != nil {
		return nil, err
	}
	c.Stage("rules of the pod's addresses")
	for _, f := range families {
		if err := n.addRules(f); err != nil {
			return nil, err
		}
	}
	c.Stage("ingressPolicy")
	if err := n.addPolicy(families); err != nil {
		return nil, err
	}
	return n.previous, nil
}

// addRules adds the rules of the pod's addresses, or none.
func (n *conf) addRules(f *family) (err error) {
	rules := f.rules()
	if len(rules) == 0 {
		return nil
	}
	if err := n.ensureChains(f); err != nil {
		return err
	}
	// The administrator's rules come before those of pods.
	if err := utils.InsertUnique(f.IPTables, table, forward, true, ownJump()); err != nil {
		return err
	}
	if err := utils.InsertUnique(f.IPTables, table, ownChain, true, n.adminJump()); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.removeRules() // DEL repeats it
		}
	}()
	for _, rule := range rules {
		if err := f.AppendUnique(table, ownChain, rule...); err != nil {
			return err
		}
	}
	return nil
}

// removeRules removes the rules of the pod's addresses. The error is that iptables cannot be used now.
func (f *family) removeRules() error {
	for _, rule := range f.rules() {
		// As the reference, it ignores other errors: mostly there is no rule.
		if err := f.Delete(table, ownChain, rule...); xtables.IsBusy(err) {
			return err
		}
	}
	return nil
}

func del(_ context.Context, c *plugin.Call) error {
	n, err := load(c)
	if err != nil {
		return err
	}
	families, err := n.families()
	if err != nil {
		return err
	}
	c.Stage("rules of the pod's addresses")
	for _, f := range families {
		if err := f.removeRules(); err != nil {
			return err
		}
	}
	return n.checkPolicy()
}

func check(_ context.Context, c *plugin.Call) error {
	n, err := load(c)
	if err != nil {
		return err
	}
	if n.previous == nil {
		return errors.New("missing prevResult from earlier plugin")
	}
	families, err := n.families()
	if err != nil {
		return err
	}
	c.Stage("look at the rules of the pod's addresses")
	for _, f := range families {
		if err := n.checkRules(f); err != nil {
			return err
		}
	}
	return nil
}

func (n *conf) checkRules(f *family) error {
	rules := f.rules()
	if len(rules) == 0 {
		return nil
	}
	if err := n.ensureChains(f); err != nil {
		return err
	}
	for _, jump := range []struct {
		from string
		rule []string
	}{{forward, ownJump()}, {ownChain, n.adminJump()}} {
		exists, err := f.Exists(table, jump.from, jump.rule...)
		if err != nil {
			return err
		}
		if !exists {
			return fmt.Errorf("expected %v rule %v not found", jump.from, jump.rule)
		}
	}
	for _, rule := range rules {
		exists, err := f.Exists(table, ownChain, rule...)
		if err != nil {
			return err
		}
		if !exists {
			return fmt.Errorf("expected rule %v not found", rule)
		}
	}
	return nil
}
