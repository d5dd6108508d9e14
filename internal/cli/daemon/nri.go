package daemon

import (
	"log/slog"
	"path/filepath"
	"time"

	validator "github.com/containerd/nri/plugins/default-validator/builtin"

	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/nri"
	"github.com/berthrun/berth/internal/version"
)

// Where plugins of the berth with the default state directory are, as plugins and operators know it
// from other runtimes.
const (
	nriSocket    = "/var/run/nri/nri.sock"
	nriPluginDir = "/opt/nri/plugins"
)

// openNRI returns the host of NRI plugins, nil where there is none: pods of a Docker Engine have no
// OCI spec of berth's.
func openNRI(cfg *config.Daemon, log *slog.Logger) (*nri.Host, error) {
	if !cfg.NRI.Enabled || cfg.Engine != "native" {
		return nil, nil
	}
	socket, plugins := cfg.NRI.Socket, cfg.NRI.PluginDir
	ownPlace := instanceOf(cfg) == defaultInstance
	if socket == "" {
		socket = filepath.Join(cfg.State, "nri", "nri.sock")
		if ownPlace {
			socket = nriSocket
		}
	}
	if plugins == "" && ownPlace {
		plugins = nriPluginDir
	}
	if cfg.NRI.DisableConnections {
		socket = ""
	}
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
