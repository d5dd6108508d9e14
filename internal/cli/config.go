package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/configcheck"
	"github.com/berthrun/berth/internal/cli/connect"
	"github.com/berthrun/berth/internal/cli/daemon"
	"github.com/berthrun/berth/internal/cli/doctorcmd"
	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
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
			Long: "check reads FILE as `berth serve --config FILE` does, and reports every fault with its key and line. It reads the\n" +
				"files that keys name, too, such as certificates and profiles. What it refuses, a reload refuses. A start refuses less:\n" +
				"a node does without its metrics rather than without its pods. Without FILE it reads " + unitConfigFile + ",\n" +
				"the file of berth.service. Keys that have no effect with the engine are a warning. So are files with credentials\n" +
				"that cannot be read: each pull reads them anew.",
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
	cfg, err := config.LoadDaemon(file, nil, configcheck.Files, daemon.CheckSubnets, daemon.CheckErofs)
	if err != nil {
		return err
	}
	warnings := configcheck.Credentials(cfg)
	if warning := daemon.UnusedWarning(cfg); warning != "" {
		warnings = append(warnings, warning)
	}
	for _, warning := range warnings {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", warning)
	}
	said := ""
	switch len(warnings) {
	case 0:
	case 1:
		said = ", 1 warning"
	default:
		said = fmt.Sprintf(", %d warnings", len(warnings))
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: no fault%s\n", file, said)
	return nil
}

func newConfigDump() *cobra.Command {
	var load daemonFlags
	var endpoint connect.Flag
	var running, secrets bool
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Print the configuration that `berth serve` uses with the same flags, or the one with which a daemon runs",
		Long: "dump prints the configuration that `berth serve` uses with the same flags. With --running it asks the daemon with which\n" +
			"one it runs: that of its start, with what reloads have changed. `berth info` names the keys that wait for a restart.",
		Example: "  diff <(berth config dump --running) <(berth config dump --config /etc/berth/berth.toml)",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			read := func() (*config.Daemon, error) { return load.load(cmd) }
			if running && load.given(cmd) {
				return fmt.Errorf("--running prints what the daemon has, and takes no other configuration: remove --config and the flags of `berth serve`: %w", errs.Invalid)
			}
			if running {
				read = func() (*config.Daemon, error) { return runningConfig(cmd, &endpoint) }
			}
			cfg, err := read()
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
	endpoint.Register(cmd)
	cmd.Flags().BoolVar(&running, "running", false, "print the configuration with which the daemon at --endpoint runs")
	cmd.Flags().BoolVar(&secrets, "show-secrets", false, "print the values of defaults.env, too; a daemon shows its own with debug.show_secrets only")
	return cmd
}

// runningConfig asks a daemon for the configuration with which it runs.
func runningConfig(cmd *cobra.Command, endpoint *connect.Flag) (cfg *config.Daemon, err error) {
	err = endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
		version, err := conn.Runtime.Version(ctx, &runtimeapi.VersionRequest{})
		if err != nil {
			return err
		}
		if name := version.GetRuntimeName(); name != "berth" {
			return fmt.Errorf("the runtime at %s is %s; --running asks a daemon of berth: %w", conn.Endpoint, name, errs.Unsupported)
		}
		status, err := conn.Runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
		if err != nil {
			return err
		}
		cfg, err = config.ReadShown(status.GetInfo()["config"])
		return err
	})
	return cfg, err
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
func (d *daemonFlags) load(cmd *cobra.Command, checks ...config.Check) (*config.Daemon, error) {
	given := map[string]string{}
	for _, field := range config.Fields(config.DefaultDaemon()) {
		if flag := cmd.Flags().Lookup(field.Flag); flag != nil && flag.Changed {
			given[field.Key] = flag.Value.String()
		}
	}
	return config.LoadDaemon(d.file, given, checks...)
}
