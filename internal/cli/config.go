package cli

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/configcheck"
	"github.com/berthrun/berth/internal/cli/daemon"
	"github.com/berthrun/berth/internal/cli/doctorcmd"
	"github.com/berthrun/berth/internal/config"
)

func newConfig() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print and check the daemon's configuration",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		&cobra.Command{
			Use:   "default",
			Short: "Print the default configuration, with help for each key",
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				fmt.Fprint(cmd.OutOrStdout(), config.Sample(config.DefaultDaemon()))
				return nil
			},
		},
		&cobra.Command{
			Use:   "check [FILE]",
			Short: "Check a configuration file, and report every fault",
			Long: "check reads FILE as `berth serve --config FILE` does, and reports every fault. Without FILE it reads\n" +
				unitConfigFile + ", the file of berth.service. Keys that have no effect with the engine are a warning.",
			Args: cobra.MaximumNArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return checkConfig(cmd, append(args, unitConfigFile)[0])
			},
		},
		newConfigDump(),
		&cobra.Command{
			Use:    "reference",
			Short:  "Print the reference page",
			Hidden: true,
			Args:   cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				fmt.Fprint(cmd.OutOrStdout(), config.Reference(config.DefaultDaemon()))
				return nil
			},
		},
	)
	return cmd
}

// unitConfigFile is the configuration that berth.service names.
const unitConfigFile = doctorcmd.ConfigFile

// checkConfig reports the faults of a configuration file as an error, and prints what else the daemon
// would warn of.
func checkConfig(cmd *cobra.Command, file string) error {
	cfg, err := config.LoadDaemon(file, nil)
	if err != nil {
		return err
	}
	if err := errors.Join(configcheck.Files(cfg)...); err != nil {
		return err
	}
	if warning := daemon.UnusedWarning(cfg); warning != "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", warning)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: no fault\n", file)
	return nil
}

func newConfigDump() *cobra.Command {
	var load daemonFlags
	var secrets bool
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Print the configuration that `berth serve` uses with the same flags",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := load.load(cmd)
			if err != nil {
				return err
			}
			if !secrets {
				cfg = config.WithoutSecrets(cfg)
			}
			fmt.Fprint(cmd.OutOrStdout(), config.Sample(cfg))
			return nil
		},
	}
	load.register(cmd)
	cmd.Flags().BoolVar(&secrets, "show-secrets", false, "print the values of defaults.env, too")
	return cmd
}

// daemonFlags are the flags of a daemon's configuration: --config, and one for each key that has a
// flag.
type daemonFlags struct {
	file string
}

func (d *daemonFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&d.file, "config", "", "configuration file (default: none)")
	for _, field := range config.Fields(config.DefaultDaemon()) {
		if field.Flag != "" {
			cmd.Flags().String(field.Flag, field.String(), field.Help)
		}
	}
}

// given reports whether a flag is set.
func (d *daemonFlags) given(cmd *cobra.Command) bool {
	return d.file != "" || slices.ContainsFunc(config.Fields(config.DefaultDaemon()), func(field config.Field) bool {
		flag := cmd.Flags().Lookup(field.Flag)
		return flag != nil && flag.Changed
	})
}

// load reads the configuration; only flags that are set override the file.
func (d *daemonFlags) load(cmd *cobra.Command) (*config.Daemon, error) {
	given := map[string]string{}
	for _, field := range config.Fields(config.DefaultDaemon()) {
		if flag := cmd.Flags().Lookup(field.Flag); flag != nil && flag.Changed {
			given[field.Key] = flag.Value.String()
		}
	}
	return config.LoadDaemon(d.file, given)
}
