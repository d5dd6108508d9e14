package clustercmd

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/progress"
	"github.com/berthrun/berth/internal/cluster"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/kubeconfig"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/report"
	"github.com/berthrun/berth/internal/errs"
)

// session is what the commands have in common that work on clusters.
type session struct {
	engine     engineFlags
	name       string
	kubeconfig string
	quiet      bool
	// ofKind: the command is one of kind's, whose cluster is called kind where nobody says a name.
	ofKind bool
}

// add gives a command the flags of a session.
func (s *session) add(cmd *cobra.Command) {
	s.addEngine(cmd)
	flags := cmd.Flags()
	otherwise := "or the only one there is; create: the file's, or " + config.DefaultName
	if s.ofKind {
		otherwise = "or " + config.DefaultKindName
	}
	flags.StringVarP(&s.name, "name", "n", "", "name of the cluster; empty: KIND_CLUSTER_NAME, "+otherwise)
	flags.StringVar(&s.kubeconfig, "kubeconfig", "", kubeconfigHelp)
	s.complete(cmd)
}

const kubeconfigHelp = "kubeconfig file; empty: the one that kubectl would use"

// addEngine gives a command those flags that are not of one cluster.
func (s *session) addEngine(cmd *cobra.Command) {
	s.engine.add(cmd)
	cmd.Flags().BoolVarP(&s.quiet, "quiet", "q", false, "show no steps")
}

// given is the name that was asked for; "" is none.
func (s *session) given(args []string) (string, error) {
	if len(args) > 0 && s.name != "" && args[0] != s.name {
		return "", fmt.Errorf("the cluster is called %q and %q at once; name it once: %w", args[0], s.name, errs.Invalid)
	}
	if len(args) > 0 {
		return args[0], nil
	}
	return cmp.Or(s.name, os.Getenv("KIND_CLUSTER_NAME")), nil
}

// use opens the engine for what a command does. Ctrl-C ends its context.
func (s *session) use(cmd *cobra.Command, do func(context.Context, *cluster.Clusters) error) error {
	engine, err := s.engine.open(cmd)
	if err != nil {
		return err
	}
	return s.with(cmd, engine, do)
}

// with is use, for an engine that is open.
func (s *session) with(cmd *cobra.Command, engine provider.Provider, do func(context.Context, *cluster.Clusters) error) error {
	files, err := kubeconfig.Locate(s.kubeconfig, os.Getenv)
	if err != nil {
		return err
	}
	steps := progress.NewSteps(cmd.ErrOrStderr())
	c := &cluster.Clusters{
		Provider: engine, Network: networkName(engine.Name()), Kubeconfig: files,
		Reporter:     report.Reporter{Step: steps.Begin, Warn: func(text string) { steps.Say("warning: " + text) }},
		FirstTime:    func(what string) bool { return firstTime(what, "/etc/machine-id") },
		LockRegistry: func(ctx context.Context) (func(), error) { return registryAlone(ctx, engine) },
	}
	if s.quiet {
		c.Step = func(string) func(error) { return func(error) {} }
	}
	return interruptible(cmd.Context(), steps.Say, func(ctx context.Context) error { return do(ctx, c) })
}

// useOne is use, for the cluster that is meant.
func (s *session) useOne(cmd *cobra.Command, args []string, do func(ctx context.Context, c *cluster.Clusters, name string) error) error {
	given, err := s.given(args)
	if err != nil {
		return err
	}
	return s.use(cmd, func(ctx context.Context, c *cluster.Clusters) error {
		name, err := s.meant(ctx, c, given)
		if err != nil {
			return err
		}
		return do(ctx, c, name)
	})
}

// useAlone is useOne, while no other berth changes the cluster.
func (s *session) useAlone(cmd *cobra.Command, args []string, do func(ctx context.Context, c *cluster.Clusters, name string) error) error {
	return s.useOne(cmd, args, func(ctx context.Context, c *cluster.Clusters, name string) error {
		release, err := alone(c.Provider, name)
		if err != nil {
			return err
		}
		defer release()
		return do(ctx, c, name)
	})
}

// useRegistry is use, while no other berth changes the registry.
func (s *session) useRegistry(cmd *cobra.Command, do func(context.Context, *cluster.Clusters) error) error {
	return s.use(cmd, func(ctx context.Context, c *cluster.Clusters) error {
		release, err := alone(c.Provider, plan.RegistryGroup)
		if err != nil {
			return err
		}
		defer release()
		return do(ctx, c)
	})
}

// meant is the cluster that is meant by a name, or by none.
func (s *session) meant(ctx context.Context, c *cluster.Clusters, given string) (string, error) {
	if given == "" && s.ofKind {
		return config.DefaultKindName, nil
	}
	return inventory.Resolve(ctx, c.Provider, given)
}
