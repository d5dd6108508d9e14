package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cli/connect"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/criclient"
)

func newNet() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "net",
		Short: "Show and check the networks of CNI plugins; enforce network policies; change routes to other nodes",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newNetList(), newNetCheck(), newNetPolicy(), newNetRoute())
	return cmd
}

func newNetList() *cobra.Command {
	var endpoint connect.Flag
	var output show.Flag
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the networks in use, their plugins and the plugins' versions",
		Long: "It asks each plugin for the versions of CNI that it supports. BUILD is the version of the program, if it has one.\n" +
			"RUNS says whether berth runs the plugin in its own process or executes the program (network.inprocess), and why.\n" +
			"Other runtimes do not support this.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				list, err := conn.Berth.ListNetworks(ctx)
				if err != nil {
					return err
				}
				return output.Print(cmd.OutOrStdout(), list, func(w io.Writer) error { return printNetworks(w, list) })
			})
		},
	}
	endpoint.Register(cmd)
	output.Register(cmd)
	return cmd
}

func printNetworks(w io.Writer, list *berthapi.NetworkList) error {
	var rows [][]string
	for _, n := range list.Networks {
		for _, p := range n.Plugins {
			path := show.Or(p.Path)
			if p.Fault != "" {
				path = p.Fault
			}
			rows = append(rows, []string{
				n.Name, show.Or(n.CNIVersion), n.Interface, p.Type, show.Or(strings.Join(p.Versions, ",")), show.Or(p.Build), path, runs(&p),
			})
		}
	}
	if err := show.Table(w, []string{"NETWORK", "CNI", "INTERFACE", "PLUGIN", "SUPPORTS", "BUILD", "PATH", "RUNS"}, rows); err != nil {
		return err
	}
	if list.Fault != "" {
		_, err := fmt.Fprintf(w, "\nFault: %s\n", list.Fault)
		return err
	}
	return nil
}

// runs is how a plugin runs, and why.
func runs(p *berthapi.NetworkPlugin) string {
	switch {
	case p.Why == "":
		return show.Or("")
	case p.InProcess:
		return "in process: " + p.Why
	default:
		return "program: " + p.Why
	}
}

func newNetCheck() *cobra.Command {
	var endpoint connect.Flag
	var output show.Flag
	cmd := &cobra.Command{
		Use:   "check [POD]...",
		Short: "Have the CNI plugins check the networks of pods (verb CHECK)",
		Long: "A plugin compares what it finds with what it made. Nothing is changed. Without an id it checks all pods that\n" +
			"are attached. A pod whose DEL fails, and is repeated, has the error of the last DEL. The exit code is 1 if a check\n" +
			"or a DEL fails. Other runtimes do not support this.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				ids, err := sandboxIDs(ctx, conn, args)
				if err != nil {
					return err
				}
				list, err := conn.Berth.CheckNetworks(ctx, ids)
				if err != nil {
					return err
				}
				if err := output.Print(cmd.OutOrStdout(), list, func(w io.Writer) error { return printChecks(w, list) }); err != nil {
					return err
				}
				failed := 0
				for _, c := range list.Checks {
					if c.Fault != "" {
						failed++
					}
				}
				if failed > 0 {
					return fmt.Errorf("the networks of %d of %d pods are not as the CNI plugins made them, or cannot be detached", failed, len(list.Checks))
				}
				return nil
			})
		},
	}
	endpoint.Register(cmd)
	output.Register(cmd)
	return cmd
}

// sandboxIDs completes ids of which the user gave the begin.
func sandboxIDs(ctx context.Context, conn *criclient.Conn, prefixes []string) ([]string, error) {
	var ids []string
	for _, prefix := range prefixes {
		status, err := conn.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: prefix})
		if err != nil {
			return nil, err
		}
		ids = append(ids, status.GetStatus().GetId())
	}
	return ids, nil
}

func printChecks(w io.Writer, list *berthapi.NetworkCheckList) error {
	var rows [][]string
	for _, c := range list.Checks {
		result := "ok"
		switch {
		case c.Fault != "":
			result = "failed: " + c.Fault
		case c.Skipped != "":
			result = "not checked: " + c.Skipped
		}
		rows = append(rows, []string{show.ID(c.SandboxID), c.Namespace, c.Name, show.Or(c.Network), show.Or(c.Interface), result})
	}
	return show.Table(w, []string{"POD", "NAMESPACE", "NAME", "NETWORK", "INTERFACE", "RESULT"}, rows)
}
