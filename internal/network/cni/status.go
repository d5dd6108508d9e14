package cni

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
)

const (
	// statusAge is how long an answer to STATUS holds: the kubelet asks more often
	// than plugins should be started.
	statusAge = 3 * time.Second
	// statusTimeout bounds one round of STATUS.
	statusTimeout = 10 * time.Second
)

// statusCache keeps the last answer of the plugins of one configuration.
type statusCache struct {
	calls network.SandboxCalls // one question at a time
	mu    sync.Mutex
	conf  []byte
	at    time.Time
	cause error
}

func newStatusCache() statusCache { return statusCache{calls: network.NewSandboxCalls()} }

// check returns the cached answer, or calls ask. Concurrent callers wait for the
// answer.
func (s *statusCache) check(ctx context.Context, c *conf, ask func() error) error {
	if known, cause := s.get(c); known {
		return cause
	}
	return s.calls.Do(ctx, "", "CNI STATUS", func() error {
		if known, cause := s.get(c); known {
			return cause
		}
		cause := ask()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.conf, s.at, s.cause = c.list.Bytes, time.Now(), cause
		return cause
	})
}

func (s *statusCache) get(c *conf) (known bool, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Equal(s.conf, c.list.Bytes) && time.Since(s.at) < statusAge, s.cause
}

// askStatus looks for every plugin and runs STATUS where the version has it.
func (n *Network) askStatus(ctx context.Context, c *conf) error {
	for _, p := range c.list.Plugins {
		if _, err := invoke.FindInPath(p.Network.Type, n.cfg.BinDirs); err != nil {
			return fmt.Errorf("%w: %w", err, errs.Unavailable)
		}
	}
	// The answer is for all callers, so it does not end with one of them.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statusTimeout)
	defer cancel()
	if err := n.lib.GetStatusNetworkList(ctx, c.list); err != nil {
		return fmt.Errorf("CNI STATUS: %w: %w", err, errs.Unavailable)
	}
	return nil
}
