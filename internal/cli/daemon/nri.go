package daemon

import (
	"log/slog"
	"time"

	validator "github.com/containerd/nri/plugins/default-validator/builtin"

	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/nri"
	"github.com/berthrun/berth/internal/version"
)

// openNRI returns the host of NRI plugins, nil where there is none: pods of a Docker Engine have no
// OCI spec of berth's.
func openNRI(cfg *config.Daemon, log *slog.Logger) (*nri.Host, error) {
	if !cfg.NRI.Enabled || cfg.Engine != "native" {
		return nil, nil
	}
	socket, plugins := cfg.NRIPlaces()
	nri.LogTo(log)
	rules := cfg.NRI
	return nri.New(nri.Config{
		Socket: socket, PluginDir: plugins, ConfigDir: cfg.NRI.ConfigDir,
		Registration: time.Duration(cfg.NRI.RegistrationTimeout), Request: time.Duration(cfg.NRI.RequestTimeout),
		Validator: validator.DefaultValidatorConfig{
			Enable:                                rules.Validate,
			RejectOCIHookAdjustment:               rules.RejectHooks,
			RejectRuntimeDefaultSeccompAdjustment: rules.RejectRuntimeDefault,
			RejectUnconfinedSeccompAdjustment:     rules.RejectUnconfined,
			RejectCustomSeccompAdjustment:         rules.RejectCustom,
			RejectNamespaceAdjustment:             rules.RejectNamespaces,
			RejectSysctlAdjustment:                rules.RejectSysctls,
			RequiredPlugins:                       rules.RequiredPlugins,
			TolerateMissingAnnotation:             rules.TolerateMissingPlugin,
		},
		Version: version.Version, Log: log,
	})
}
