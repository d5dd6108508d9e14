package daemon

import (
	"context"
	"errors"
	"log/slog"

	"github.com/berthrun/berth/internal/apisocket"
	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/cri"
	"github.com/berthrun/berth/internal/cri/containerdapi"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod"
	"github.com/berthrun/berth/internal/version"
)

// serveCadvisor answers a kubelet's cAdvisor, if it is configured and no other
// process answers on the socket. The returned function stops it.
func serveCadvisor(ctx context.Context, cfg *config.Daemon, pods *pod.Service, log *slog.Logger) (stop func(), err error) {
	if cfg.CadvisorSocket == "" {
		return func() {}, nil
	}
	listener, err := apisocket.Listen(ctx, apisocket.Options{Path: cfg.CadvisorSocket})
	if errors.Is(err, errs.Exists) {
		log.Warn("cannot serve cAdvisor: the socket is in use", "socket", cfg.CadvisorSocket, "error", err)
		return func() {}, nil
	}
	if err != nil {
		return nil, err
	}
	api := containerdapi.New(pods, version.Version, log)
	server := cri.NewGRPCServer(log, nil, nil)
	api.Register(server)
	ctx, cancel := context.WithCancel(ctx)
	served, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(served)
		if err := server.Serve(listener); err != nil {
			log.Error("cannot serve cAdvisor any longer", "socket", cfg.CadvisorSocket, "error", err)
		}
	}()
	go func() {
		defer close(watched)
		api.UpdatePlaceholders(ctx)
	}()
	log.Info("serving cAdvisor", "socket", cfg.CadvisorSocket)
	return func() {
		cancel()
		server.Stop()
		<-served
		<-watched
	}, nil
}
