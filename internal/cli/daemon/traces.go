package daemon

import (
	"log/slog"

	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/cri/scrub"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/traces"
	"github.com/berthrun/berth/internal/version"
)

// newTracer makes what makes spans, which makes none yet.
func newTracer(cfg *config.Daemon, log *slog.Logger) *traces.Tracer {
	return traces.New(traces.Options{Version: version.Version, Instance: instanceOf(cfg), Scrub: scrub.New().Text, Log: log})
}

// sendTraces sends spans as the configuration says. A node does without them rather than without its pods, so a fault
// is logged.
func (p *parts) sendTraces(cfg *config.Daemon, log *slog.Logger) {
	err := p.tracer.Apply(traces.Settings{
		Endpoint: cfg.Traces.Endpoint, Protocol: cfg.Traces.Protocol, RatePerMillion: cfg.Traces.SamplingRate,
		CAFile: cfg.Traces.CA, CertFile: cfg.Traces.TLSCert, KeyFile: cfg.Traces.TLSKey,
	})
	if err != nil {
		log.Error("the settings of traces are not applied; mend the cause and reload the configuration", "error", errs.Message(err))
	}
}

// pullsSeen counts pulls and traces them.
type pullsSeen struct {
	image.PullObserver
	image.PullTracer
}
