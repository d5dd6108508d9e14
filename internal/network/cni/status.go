package cni

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
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
