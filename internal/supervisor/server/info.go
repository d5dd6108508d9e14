package server

import (
	"context"
	"os"

	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/supervisor/wire"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// info describes the supervisor.
func (ss *session) info(context.Context, *wire.Request) (*wire.Reply, error) {
	s := ss.server
	used, limit, err := sysfd.CountFDs()
	if err != nil {
		return nil, err
	}
	info := &supervisor.Info{
		Version:         s.opts.Version,
		Runtime:         ociruntime.Name,
		Protocol:        supervisor.ProtocolVersion,
		Pid:             os.Getpid(),
		Descriptors:     used,
		DescriptorLimit: limit,
		Warnings:        s.containers.Warnings(),
	}
	info.Starters, info.StarterReasons = s.containers.Starters()
	info.Starts, info.StartReasons = s.containers.Starts()
	logs := s.containers.LogFigures()
	info.Logs = &logs
	if s.opts.Keeper != nil && !s.keeperLost() {
		info.KeeperPid = os.Getppid()
	}
	return &wire.Reply{Body: info}, nil
}
