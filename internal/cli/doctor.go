package cli

import (
	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/doctorcmd"
	"github.com/berthrun/berth/internal/config"
)

// newDoctor reads the configuration as `berth serve` with the same flags does. Without flags it is
// that of berth.service.
func newDoctor() *cobra.Command {
	var flags daemonFlags
	return doctorcmd.New(flags.register, func(cmd *cobra.Command) doctorcmd.Configuration {
		if !flags.given(cmd) {
			return doctorcmd.Load()
		}
		cfg, err := flags.load(cmd)
		if err != nil {
			cfg = config.DefaultDaemon()
		}
		return doctorcmd.Configuration{Daemon: cfg, File: flags.file, Fault: err}
	})
}
