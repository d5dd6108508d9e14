package pod

import (
	"context"
	"slices"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/network"
)

// EngineInfo returns what the engine is and can do. Its warnings include View.Warnings.
func (s *Service) EngineInfo(ctx context.Context) (*engine.Info, error) {
	info, err := s.engine.Info(ctx)
	if err != nil {
		return nil, err
	}
	complete := *info
	complete.Warnings = slices.Concat(info.Warnings, s.Warnings(), s.plugins.Warnings())
	return &complete, nil
}

// EngineCalls returns what the engine has counted; see engine.CallCounter. It is nil for an
// engine that counts nothing.
func (s *Service) EngineCalls() map[string]engine.CallCount {
	if counter, ok := s.engine.(engine.CallCounter); ok {
		return counter.Calls()
	}
	return nil
}

// NetworkReady is nil when sandboxes can be attached, else why not.
func (s *Service) NetworkReady(ctx context.Context) error { return s.network.Ready(ctx) }

// NetworkConfig is for verbose status; see network.Configured. It is nil for a network
// without a configuration of others.
func (s *Service) NetworkConfig() (config any, fault error) {
	if configured, ok := s.network.(network.Configured); ok {
		return configured.LoadedConfig()
	}
	return nil, nil
}

// NetworkInfo is for people and verbose status.
func (s *Service) NetworkInfo() map[string]string { return s.network.Info() }

// SetPodCIDR hands the node's pod ranges to the network.
func (s *Service) SetPodCIDR(ctx context.Context, cidr string) error {
	return s.network.SetPodCIDR(ctx, cidr)
}

// NRIInfo describes NRI's plugins, for people. It is nil when NRI is off.
func (s *Service) NRIInfo() any {
	if info := s.plugins.Info(); info != nil {
		return info
	}
	return nil
}
