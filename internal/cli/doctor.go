package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/connect"
	"github.com/berthrun/berth/internal/cli/doctorcmd"
	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/errs"
)

// newDoctor reads the configuration as `berth serve` with the same flags does. Without them it is that of the berth at
// the endpoint, and without an endpoint that of berth.service.
func newDoctor() *cobra.Command {
	var flags daemonFlags
	var endpoint connect.Flag
	register := func(cmd *cobra.Command) {
		flags.register(cmd)
		endpoint.Register(cmd)
	}
	return doctorcmd.New(register, func(cmd *cobra.Command) (doctorcmd.Configuration, error) {
		at, byUser := endpoint.Given()
		if flags.given(cmd) {
			cfg, err := flags.load(cmd)
			if cfg == nil {
				cfg = config.DefaultDaemon()
			}
			if byUser {
				cfg.Listen = at
			}
			return doctorcmd.Configuration{Daemon: cfg, File: flags.file, Fault: err}, nil
		}
		if at == "" {
			return doctorcmd.Load(), nil
		}
		found, err := doctorcmd.LoadFrom(cmd.Context(), at)
		if errors.Is(err, errs.Unsupported) && !byUser {
			// The variable is for commands that work with every runtime.
			fmt.Fprintf(cmd.ErrOrStderr(), "%s; examining the berth of berth.service\n", errs.Message(err))
			return doctorcmd.Load(), nil
		}
		return found, err
	})
}
