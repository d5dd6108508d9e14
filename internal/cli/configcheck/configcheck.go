// Package configcheck checks the files that the daemon's configuration names, for `berth config check` and `berth doctor`.
// What is in the configuration itself, internal/config checks.
package configcheck

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/engine/basespec"
	"github.com/berthrun/berth/internal/engine/ioclass"
	"github.com/berthrun/berth/internal/engine/ocihooks"
	"github.com/berthrun/berth/internal/tlsfiles"
)

// Files returns the faults of the files that a configuration names, as far as they are on this machine. Each error names
// the key.
func Files(cfg *config.Daemon) []error {
	faults := []error{checkHooks("runtime.hooks_dirs", cfg.Runtime.HookDirs), ioclass.CheckBlockIO(cfg.Runtime.BlockIOFile)}
	for _, name := range slices.Sorted(maps.Keys(cfg.Handlers)) {
		h := cfg.Handlers[name]
		_, err := basespec.Read(name, h.BaseSpec)
		faults = append(faults, checkHooks("handlers."+name+".hooks_dirs", h.HookDirs), err)
	}
	if cfg.Stream.TLS != "off" {
		faults = append(faults, checkCertificates("stream", tlsfiles.Files{CertFile: cfg.Stream.TLSCert, KeyFile: cfg.Stream.TLSKey, ClientCAFile: cfg.Stream.TLSClientCA}))
	}
	faults = append(faults,
		checkCertificates("metrics", tlsfiles.Files{CertFile: cfg.Metrics.TLSCert, KeyFile: cfg.Metrics.TLSKey, ClientCAFile: cfg.Metrics.ClientCA}),
		checkCertificates("page", tlsfiles.Files{CertFile: cfg.Page.TLSCert, KeyFile: cfg.Page.TLSKey, ClientCAFile: cfg.Page.ClientCA}),
		checkCertificates("traces", tlsfiles.Files{CertFile: cfg.Traces.TLSCert, KeyFile: cfg.Traces.TLSKey, ClientCAFile: cfg.Traces.CA}))
	return slices.DeleteFunc(faults, func(err error) bool { return err == nil })
}

// checkCertificates reads the PEM files of a section. The daemon only logs faults of metrics, page and traces, and runs
// without that server.
func checkCertificates(section string, files tlsfiles.Files) error {
	if files.CertFile == "" && files.KeyFile == "" && files.ClientCAFile == "" {
		return nil
	}
	if _, err := tlsfiles.New(files, section, "localhost", slog.New(slog.DiscardHandler)); err != nil {
		return fmt.Errorf("%s: %w", section, err)
	}
	return nil
}

func checkHooks(key string, dirs []string) error {
	_, faults := new(ocihooks.Reader).Read(dirs)
	if err := ocihooks.Join(faults); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}
