package clustercmd

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/progress"
	"github.com/berthrun/berth/internal/cluster"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/kubeconfig"
	"github.com/berthrun/berth/internal/errs"
)

// session is what the commands have in common that work on clusters.
type session struct {
	engine     engineFlags
	name       string
	kubeconfig string
	quiet      bool
}

// add gives a command the flags of a session.
func (s *session) add(cmd *cobra.Command) {
	s.addEngine(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&s.name, "name", "n", "", "name of the cluster; empty: KIND_CLUSTER_NAME, or the only one there is; create: the file's, or "+config.DefaultName)
	flags.StringVar(&s.kubeconfig, "kubeconfig", "", "kubeconfig file; empty: the one that kubectl would use")
}

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
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	engine, err := s.engine.open(cmd)
	if err != nil {
		return err
	}
	files, err := kubeconfig.Locate(s.kubeconfig, os.Getenv)
	if err != nil {
		return err
	}
	steps := progress.NewSteps(cmd.ErrOrStderr())
	c := &cluster.Clusters{
		Engine: engine, Network: networkName(engine.Name()), Kubeconfig: files, Step: steps.Begin,
		Warn: func(text string) { steps.Say("warning: " + text) },
	}
	if s.quiet {
		c.Step = func(string) func(error) { return func(error) {} }
	}
	return do(ctx, c)
}

// useOne is use, for the cluster that is meant.
func (s *session) useOne(cmd *cobra.Command, args []string, do func(ctx context.Context, c *cluster.Clusters, name string) error) error {
	given, err := s.given(args)
	if err != nil {
		return err
	}
	return s.use(cmd, func(ctx context.Context, c *cluster.Clusters) error {
		name, err := c.Meant(ctx, given)
		if err != nil {
			return err
		}
		return do(ctx, c, name)
	})
}
