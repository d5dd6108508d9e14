package cni

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/network/cni/plugin"
	"github.com/berthrun/berth/internal/network/cni/plugin/all"
)

const (
	// statusAge is how long an answer to STATUS holds: the kubelet asks more often
	// than plugins should be started.
	statusAge = 3 * time.Second
	// statusTimeout bounds one round of STATUS.
	statusTimeout = 10 * time.Second
)

// statusCache keeps the last answer of the plugins of the configurations in use.
type statusCache struct {
	calls network.SandboxCalls // one question at a time
	grace time.Duration
	log   *slog.Logger

	mu     sync.Mutex
	conf   []byte
	at     time.Time
	cause  error
	served bool      // the plugins of conf have said that they can serve
	failed time.Time // since when they have not; zero before a fault
}

func newStatusCache(grace time.Duration, log *slog.Logger) *statusCache {
	return &statusCache{calls: network.NewSandboxCalls(), grace: grace, log: log}
}

// check returns the cached answer, or calls ask. Concurrent callers wait for the
// answer. Plugins that could serve have the grace period to do so again: an agent that
// restarts, or a plugin that is being replaced, is not a node that cannot run pods.
func (s *statusCache) check(ctx context.Context, c []*conf, ask func() error) error {
	if known, cause := s.get(c); known {
		return cause
	}
	return s.calls.Do(ctx, "", "CNI STATUS", func() error {
		if known, cause := s.get(c); known {
			return cause
		}
		s.put(c, ask())
		_, cause := s.get(c)
		return cause
	})
}

func (s *statusCache) put(c []*conf, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !bytes.Equal(s.conf, bytesOf(c)) {
		s.served, s.failed = false, time.Time{}
	}
	s.conf, s.at, s.cause = bytesOf(c), time.Now(), cause
	switch {
	case cause == nil:
		s.served, s.failed = true, time.Time{}
	case s.failed.IsZero():
		s.failed = s.at
		if s.served {
			s.log.Warn("the CNI plugins cannot serve any more", "grace", s.grace, "error", cause)
		}
	}
}

// get returns the answer that holds, with nil for a fault in the grace period.
func (s *statusCache) get(c []*conf) (known bool, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known = bytes.Equal(s.conf, bytesOf(c)) && time.Since(s.at) < statusAge
	if s.inGrace() {
		return known, nil
	}
	return known, s.cause
}

// inGrace reports whether the fault is one that the grace period covers. The caller holds s.mu.
func (s *statusCache) inGrace() bool {
	return s.cause != nil && s.served && time.Since(s.failed) < s.grace
}

// tolerated returns the fault that the grace period covers, nil for none.
func (s *statusCache) tolerated() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.inGrace() {
		return nil
	}
	return fmt.Errorf("the CNI plugins cannot serve any more; the network stays ready for %v: %w", s.grace, s.cause)
}

// bytesOf are the configurations as one.
func bytesOf(confs []*conf) []byte {
	var all []byte
	for _, c := range confs {
		all = append(append(all, c.list.Bytes...), '\n')
	}
	return all
}

// askStatus looks whether every plugin can serve its configuration, and runs STATUS where the version has it.
func (n *Network) askStatus(ctx context.Context, confs []*conf) error {
	// The answer is for all callers, so it does not end with one of them.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statusTimeout)
	defer cancel()
	for _, c := range confs {
		for _, p := range c.list.Plugins {
			if err := n.canAdd(p); err != nil {
				return fmt.Errorf("network %q of %s: %w: %w", c.list.Name, c.file, err, errs.Unavailable)
			}
		}
		if err := n.lib.GetStatusNetworkList(ctx, c.list); err != nil {
			return fmt.Errorf("network %q of %s: CNI STATUS: %w: %w", c.list.Name, c.file, err, errs.Unavailable)
		}
	}
	return nil
}

// canAdd looks for a plugin, and for what keeps it from serving its configuration. Of a plugin that berth has too it
// knows that its IPAM plugin is another one, which a program finds only as a program; others may have IPAM of their own.
func (n *Network) canAdd(p *libcni.PluginConfig) error {
	path, err := n.exec.FindInPath(p.Network.Type, n.cfg.BinDirs)
	if err != nil {
		return err
	}
	how, err := n.exec.wayOf(path, "ADD", p.Bytes)
	if err != nil {
		return err
	}
	ipam := p.Network.IPAM.Type
	switch {
	case ipam == "" || all.ByType(p.Network.Type) == nil:
		return nil
	case how.plugin == nil:
		if _, err = invoke.FindInPath(ipam, n.cfg.BinDirs); err != nil {
			return fmt.Errorf("the program %s does not find its IPAM plugin: %w", path, err)
		}
		return nil
	}
	if path, err = n.exec.FindInPath(ipam, n.cfg.BinDirs); err != nil {
		return err
	}
	_, err = n.exec.wayOf(path, "ADD", p.Bytes)
	return err
}

// refusal returns why each ADD with a list would fail, whatever the pod: then berth attaches no pod with it, and no pod
// has an attachment that DEL cannot undo. It looks at what CNI itself demands, and at the configurations of plugins that
// run in process. Other programs may understand more than berth knows.
func (n *Network) refusal(list *libcni.NetworkConfigList) error {
	if known := version.All.SupportedVersions(); list.CNIVersion != "" && !slices.Contains(known, list.CNIVersion) {
		return fmt.Errorf("field cniVersion: %q is not a version of CNI; there are %s", list.CNIVersion, strings.Join(known, ", "))
	}
	for i, p := range list.Plugins {
		field := fmt.Sprintf("plugins[%d]", i)
		ipam := p.Network.IPAM.Type
		if own := all.ByType(ipam); own != nil && !own.IPAM && all.ByType(p.Network.Type) != nil {
			return fmt.Errorf("field %s.ipam.type: %s is not an IPAM plugin", field, ipam)
		}
		complete, err := libcni.InjectConf(p, map[string]any{"name": list.Name, "cniVersion": cmp.Or(list.CNIVersion, "0.1.0")})
		if err != nil {
			return fmt.Errorf("field %s: %w", field, err)
		}
		if own := n.inProcess(p.Network.Type, complete.Bytes); own != nil {
			if i == 0 && own.Chained {
				return fmt.Errorf("field %s: the plugin %s needs the result of a plugin before it", field, own.Type)
			}
			if err := refused(own, list.CNIVersion, field, complete.Bytes); err != nil {
				return err
			}
		}
		// A node's pod ranges come with the call.
		if own := n.inProcess(ipam, complete.Bytes); own != nil && own.IPAM && !p.Network.Capabilities[capIPRanges] {
			if err := refused(own, list.CNIVersion, field, complete.Bytes); err != nil {
				return err
			}
		}
	}
	return nil
}

// refused is the fault that a plugin finds in a configuration.
func refused(p *plugin.Plugin, cniVersion, field string, config []byte) error {
	if err := (&version.Reconciler{}).Check(cmp.Or(cniVersion, "0.1.0"), p.Versions); err != nil {
		return fmt.Errorf("field cniVersion: the plugin %s does not know %q: %s", p.Type, cniVersion, err.Details())
	}
	err := p.Refuses(config)
	var wrong *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &wrong):
		keys := slices.DeleteFunc(strings.Split(wrong.Field, "."), isGoName)
		return fmt.Errorf("field %s (plugin %s): a %s is there in the place of a value of the type %v", strings.Join(append([]string{field}, keys...), "."), p.Type, wrong.Value, wrong.Type)
	default:
		return fmt.Errorf("field %s (plugin %s): %w", field, p.Type, err)
	}
}

// isGoName reports whether an element of an UnmarshalTypeError's path is the name of an embedded structure, which the
// configuration does not have.
func isGoName(key string) bool { return key != "" && unicode.IsUpper([]rune(key)[0]) }

// inProcess returns the plugin that runs in process with a configuration, nil for a program and for an unknown type.
func (n *Network) inProcess(name string, config []byte) *plugin.Plugin {
	if name == "" {
		return nil
	}
	path, err := n.exec.FindInPath(name, n.cfg.BinDirs)
	if err != nil {
		return nil
	}
	how, err := n.exec.wayOf(path, "VERSION", config) // what the host is like now does not count
	if err != nil {
		return nil
	}
	return how.plugin
}
