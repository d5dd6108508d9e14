package cli

import (
	"github.com/berthrun/berth/internal/cli/daemon"
	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/image/helper"
	"github.com/spf13/cobra"
)

func newServe() *cobra.Command {
	var load daemonFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon, which serves CRI to the kubelet",
		Long: "serve serves CRI v1 until SIGTERM. Pods outlive the daemon; the next daemon adopts them. On SIGHUP the daemon reads\n" +
			"the configuration again. Several daemons can run on one host, each with its own --listen, --root and --state.",
		Example: "  berth serve --config /etc/berth/berth.toml\n" +
			"  berth serve --listen unix:///run/berth2/berth.sock --root /var/lib/berth2 --state /run/berth2",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return daemon.Run(cmd.Context(), load.file, func(checks ...config.Check) (*config.Daemon, error) { return load.load(cmd, checks...) })
		},
	}
	load.register(cmd)
	return cmd
}

// newUnpackLayer is the helper of the image store, for a berth that does not embed it; see package program.
func newUnpackLayer() *cobra.Command {
	return &cobra.Command{
		Use:                "unpack-layer",
		Short:              "Unpack one layer, confined; run by the daemon",
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			if code := helper.Main(args); code != 0 {
				return &ExitError{Code: code}
			}
			return nil
		},
	}
}
