// Package inside has the hidden commands that nodes, load balancers and the host's boot run.
package inside

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cluster/innode"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/registry/server"
	"github.com/berthrun/berth/internal/cluster/storage/provisioner"
)

// NewInNode returns `in-node`, the commands that run inside containers of clusters.
func NewInNode() *cobra.Command {
	cmd := &cobra.Command{
		Use:    "in-node",
		Short:  "Commands that run in nodes and load balancers",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		&cobra.Command{
			Use:   "start",
			Short: "Prepare the node and become systemd",
			Args:  cobra.NoArgs,
			RunE:  func(cmd *cobra.Command, _ []string) error { return innode.Start(cmd.Context(), os.LookupEnv) },
		},
		&cobra.Command{
			Use:   "cgroups",
			Short: "Create the cgroups that the kubelet keeps pods in",
			Args:  cobra.NoArgs,
			RunE:  func(*cobra.Command, []string) error { return innode.Cgroups() },
		},
		&cobra.Command{
			Use:   "provision",
			Short: "Create and delete the volumes of the node",
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
				defer stop()
				return provisioner.Run(ctx, os.Getenv("NODE_NAME"), slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
			},
		},
		&cobra.Command{
			Use:   "balance",
			Short: "Become the haproxy of a load balancer",
			Args:  cobra.NoArgs,
			RunE:  func(*cobra.Command, []string) error { return innode.Balance() },
		},
		&cobra.Command{
			Use:   "rebalance",
			Short: "Configure the control planes of a load balancer, from JSON on standard input",
			Args:  cobra.NoArgs,
			RunE:  func(cmd *cobra.Command, _ []string) error { return innode.Rebalance(cmd.Context(), cmd.InOrStdin()) },
		},
		&cobra.Command{
			Use:   "forget-member NAME [ADDRESS...]",
			Short: "Remove another control plane from etcd",
			Args:  cobra.MinimumNArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return innode.RemoveMember(cmd.Context(), args[0], args[1:])
			},
		},
		newLookup(),
		newServeRegistry(),
	)
	return cmd
}

// newLookup queries a name server: nodes have no other program for it.
func newLookup() *cobra.Command {
	var server string
	cmd := &cobra.Command{
		Use:   "lookup NAME",
		Short: "Print the addresses that a name server has for a name",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), lookupTime)
			defer cancel()
			resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
				var dialer net.Dialer
				return dialer.DialContext(ctx, network, net.JoinHostPort(server, "53"))
			}}
			// With a dot at its end, so that no search domain is tried.
			found, err := resolver.LookupHost(ctx, strings.TrimSuffix(args[0], ".")+".")
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "address", strings.Join(found, " "))
			return err
		},
	}
	cmd.Flags().StringVar(&server, "server", "", "address of the name server")
	return cmd
}

// lookupTime bounds a query to a name server on the same host.
const lookupTime = 5 * time.Second

// newServeRegistry is the command of the registry's container.
func newServeRegistry() *cobra.Command {
	return &cobra.Command{
		Use:   "registry",
		Short: "Serve the registry of clusters",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			var lc net.ListenConfig
			listener, err := lc.Listen(ctx, "tcp", fmt.Sprintf(":%d", plan.RegistryPort))
			if err != nil {
				return fmt.Errorf("the registry cannot listen: %w", err)
			}
			r, err := server.Open(ctx, plan.RegistryDir, slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
			if err != nil {
				return err
			}
			defer r.Close()
			return r.Serve(ctx, listener)
		},
	}
}
