package clustercmd

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/clustercmd/session"
	"github.com/berthrun/berth/internal/cluster"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/local"
	"github.com/berthrun/berth/internal/cluster/plan"
)

// longName is the length from which names of nodes come close to the limit of a host name.
const longName = 50

// newCreate creates a cluster.
func newCreate() *cobra.Command {
	cmd := create(false)
	cmd.AddCommand(newCreateOfKind())
	return cmd
}

// newCreateOfKind is `create cluster`.
func newCreateOfKind() *cobra.Command {
	cmd := create(true)
	cmd.Use, cmd.Args = "cluster", cobra.NoArgs
	return session.AsKind(cmd)
}

func create(kinds bool) *cobra.Command {
	s := session.Session{OfKind: kinds}
	o := cluster.CreateOptions{OfKind: kinds}
	var file, image string
	cmd := &cobra.Command{
		Use:        "create [NAME]",
		SuggestFor: []string{"new", "up"},
		Short:      "Create a cluster and add it to the kubeconfig",
		Long: "create creates the cluster that a file of berth or kind describes, or a cluster with one node. If a step fails,\n" +
			"or on Ctrl-C, create removes what it has made, unless --retain is given. The cluster stays once create waits for\n" +
			"its nodes (--wait).",
		Example: "  berth cluster create --config cluster.yaml --wait 2m\n" +
			"  berth cluster create dev",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := s.GivenName(args)
			if err != nil {
				return err
			}
			if o.Cluster, err = description(cmd, file, config.Options{Name: name, Image: image, OfKind: kinds}); err != nil {
				return err
			}
			if len(o.Cluster.Name) > longName {
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: the name %q is long; host names have at most 63 characters\n", o.Cluster.Name)
			}
			return s.Use(cmd, func(ctx context.Context, c *cluster.Clusters) error {
				if c.Network != "" {
					c.Warn(fmt.Sprintf("nodes are on the network %s, because of %s", c.Network, local.NetworkVariable(c.Provider.Name())))
				}
				release, err := local.Lock(c.Provider, o.Cluster.Name)
				if err != nil {
					return err
				}
				defer release()
				into, err := c.Create(ctx, o)
				if into != "" {
					reportContext(cmd, s, plan.ContextName(o.Cluster), into)
				}
				return err
			})
		},
	}
	s.AddFlags(cmd)
	flags := cmd.Flags()
	flags.StringVar(&file, "config", "", "cluster file; - is standard input; empty: one control-plane node")
	flags.StringVar(&image, "image", "", "node image for all nodes; overrides the file")
	flags.BoolVar(&o.Retain, "retain", false, "keep the nodes when a step fails")
	if kinds {
		session.AddDuration(cmd, &o.Wait, "wait", "how long to wait until control planes are Ready; 0: do not wait")
	} else {
		session.AddWait(cmd, &o.Wait)
	}
	return cmd
}

// description is the cluster of a file, or the default one.
func description(cmd *cobra.Command, path string, o config.Options) (*config.Cluster, error) {
	if path == "" {
		return config.Default(o)
	}
	file, data, err := config.ReadFile(path, cmd.InOrStdin())
	if err != nil {
		return nil, err
	}
	return config.Load(file, data, o)
}

// newPower are start, stop and restart.
func newPower() []*cobra.Command {
	var all []*cobra.Command
	for _, verb := range []struct {
		name, short string
		stop, start bool
	}{
		{"start", "Start the nodes of a stopped cluster", false, true},
		{"stop", "Stop the nodes of a cluster; they keep their disks", true, false},
		{"restart", "Restart the nodes of a cluster", true, true},
	} {
		var s session.Session
		var wait time.Duration
		cmd := &cobra.Command{
			Use:   verb.name + " [NAME]",
			Short: verb.short,
			Args:  cobra.MaximumNArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return s.UseClusterAlone(cmd, args, func(ctx context.Context, c *cluster.Clusters, name string) error {
					if verb.stop {
						if err := c.Stop(ctx, name); err != nil {
							return err
						}
					}
					if !verb.start {
						return nil
					}
					return c.Start(ctx, name, wait)
				})
			},
		}
		s.AddFlags(cmd)
		if verb.start {
			session.AddWait(cmd, &wait)
		}
		all = append(all, cmd)
	}
	return all
}
