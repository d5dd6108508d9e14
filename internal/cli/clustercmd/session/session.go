// Package session has what the commands of `berth cluster` share: flags, the provider, locks
// between processes, and Ctrl-C.
package session

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berthrun/berth/internal/cli/interrupt"
	"github.com/berthrun/berth/internal/cli/progress"
	"github.com/berthrun/berth/internal/cluster"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/local"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/report"
	"github.com/berthrun/berth/internal/errs"
)

// Session has the flags of a command that works on clusters.
type Session struct {
	Provider   ProviderFlags
	Name       string
	Kubeconfig string
	Quiet      bool
	// OfKind: the command is one of kind's, whose default cluster is called kind.
	OfKind bool

	// nameFlag is --name; nil for a command without it.
	nameFlag *pflag.Flag
}

// AddFlags adds the flags of a session to a command.
func (s *Session) AddFlags(cmd *cobra.Command) {
	s.AddProviderFlags(cmd)
	flags := cmd.Flags()
	otherwise := "or the only one there is; create: the file's, or " + config.DefaultName
	if s.OfKind {
		otherwise = "or " + config.DefaultKindName
	}
	flags.StringVarP(&s.Name, "name", "n", "", "name of the cluster; without it: KIND_CLUSTER_NAME, "+otherwise)
	s.nameFlag = flags.Lookup("name")
	flags.StringVar(&s.Kubeconfig, "kubeconfig", "", KubeconfigHelp)
	s.completeClusters(cmd)
}

// KubeconfigHelp is the help of --kubeconfig.
const KubeconfigHelp = "kubeconfig file; empty: the one that kubectl would use"

// AddProviderFlags adds the flags that do not concern one cluster.
func (s *Session) AddProviderFlags(cmd *cobra.Command) {
	s.Provider.AddFlags(cmd)
	cmd.Flags().BoolVarP(&s.Quiet, "quiet", "q", false, "do not show steps")
}

// GivenName returns the name of the cluster in arguments, flags or environment; "" for none.
func (s *Session) GivenName(args []string) (string, error) {
	given := args
	if s.nameFlag != nil && s.nameFlag.Changed {
		given = append(slices.Clip(args), s.Name)
	}
	if err := s.CheckNames(given); err != nil {
		return "", err
	}
	if len(args) > 0 && s.Name != "" && args[0] != s.Name {
		return "", fmt.Errorf("the cluster has two names, %q and %q; give one: %w", args[0], s.Name, errs.Invalid)
	}
	if len(args) > 0 {
		return args[0], nil
	}
	return cmp.Or(s.Name, os.Getenv("KIND_CLUSTER_NAME")), nil
}

// CheckNames refuses an empty name among those that were given: it is probably a variable that is not set, and not a
// request for the only cluster. For kind it is the name of the default cluster.
func (s *Session) CheckNames(given []string) error {
	if !s.OfKind && slices.Contains(given, "") {
		return inventory.ErrNoName
	}
	return nil
}

// Use opens the provider for do. Ctrl-C ends the context of do.
func (s *Session) Use(cmd *cobra.Command, do func(context.Context, *cluster.Clusters) error) error {
	engine, err := s.Provider.Open(cmd)
	if err != nil {
		return err
	}
	return s.UseProvider(cmd, engine, do)
}

// UseProvider is Use with an open provider.
func (s *Session) UseProvider(cmd *cobra.Command, engine provider.Provider, do func(context.Context, *cluster.Clusters) error) error {
	steps := progress.NewSteps(cmd.ErrOrStderr())
	c, err := local.Clusters(engine, s.Kubeconfig, report.Reporter{
		Step: steps.Begin, Warn: func(text string) { steps.Say("warning: " + text) },
	})
	if err != nil {
		return err
	}
	if s.Quiet {
		c.Step = func(string) func(error) { return func(error) {} }
	}
	return interrupt.Run(cmd.Context(), steps.Say, func(ctx context.Context) error { return do(ctx, c) })
}

// UseCluster is Use with the name of the cluster to work on.
func (s *Session) UseCluster(cmd *cobra.Command, args []string, do func(ctx context.Context, c *cluster.Clusters, name string) error) error {
	given, err := s.GivenName(args)
	if err != nil {
		return err
	}
	return s.Use(cmd, func(ctx context.Context, c *cluster.Clusters) error {
		name, err := s.Resolve(ctx, c, given)
		if err != nil {
			return err
		}
		return do(ctx, c, name)
	})
}

// UseClusterAlone is UseCluster, and locks the cluster against other processes of berth.
func (s *Session) UseClusterAlone(cmd *cobra.Command, args []string, do func(ctx context.Context, c *cluster.Clusters, name string) error) error {
	return s.UseCluster(cmd, args, func(ctx context.Context, c *cluster.Clusters, name string) error {
		release, err := local.Lock(c.Provider, name)
		if err != nil {
			return err
		}
		defer release()
		return do(ctx, c, name)
	})
}

// UseRegistryAlone is Use, and locks the registry against other processes of berth.
func (s *Session) UseRegistryAlone(cmd *cobra.Command, do func(context.Context, *cluster.Clusters) error) error {
	return s.Use(cmd, func(ctx context.Context, c *cluster.Clusters) error {
		release, err := local.Lock(c.Provider, plan.RegistryGroup)
		if err != nil {
			return err
		}
		defer release()
		return do(ctx, c)
	})
}

// Resolve returns the cluster of a name, or of none.
func (s *Session) Resolve(ctx context.Context, c *cluster.Clusters, given string) (string, error) {
	if given == "" && s.OfKind {
		return config.DefaultKindName, nil
	}
	return inventory.Resolve(ctx, c.Provider, given)
}
