package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"

	"github.com/spf13/cobra"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network/noderoutes"
)

// netRoute has the flags of `berth net route`.
type netRoute struct{ config, file string }

func newNetRoute() *cobra.Command {
	var f netRoute
	cmd := &cobra.Command{
		Use:   "route",
		Short: "Show and change the routes of this node to the pods of other nodes",
		Long: "The routes are in a file (network.routes_file), one a line: SUBNET via GATEWAY [dev LINK]. A berth with the built-in\n" +
			"network follows the file, so a change is in force within a second. These commands need no running berth.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.config, "config", "", "the configuration of berth that names the file (default: "+unitConfigFile+" if it is there)")
	flags.StringVar(&f.file, "file", "", "the file (default: network.routes_file of the configuration)")
	cmd.AddCommand(f.newAdd(), f.newRemove(), f.newSet(), f.newList())
	return cmd
}

// path finds the file. It warns if berth does not follow it.
func (f *netRoute) path(warn io.Writer) (string, error) {
	if f.file != "" {
		return f.file, nil
	}
	name := f.config
	if name == "" {
		if _, err := os.Stat(unitConfigFile); !errors.Is(err, fs.ErrNotExist) {
			name = unitConfigFile
		}
	}
	cfg, err := config.LoadDaemon(name, nil)
	if err != nil {
		return "", err
	}
	if cfg.Network.RoutesFile == "" {
		return "", fmt.Errorf("network.routes_file is empty in %s: set it, or name a file with --file: %w", name, errs.Invalid)
	}
	// Without a file berth may have been started with flags.
	if cfg.Network.Mode == "cni" && name != "" {
		fmt.Fprintf(warn, "warning: network.mode is cni in %s: such a berth does not follow %s\n", name, cfg.Network.RoutesFile)
	}
	return cfg.Network.RoutesFile, nil
}

func (f *netRoute) newAdd() *cobra.Command {
	return &cobra.Command{
		Use:   "add SUBNET via GATEWAY [dev LINK]",
		Short: "Add a route, or replace the one to the same subnet",
		Example: "  berth net route add 10.244.1.0/24 via 192.0.2.11\n" +
			"  berth net route add fd00:10:244:1::/64 via fe80::11 dev eth0",
		Args: cobra.RangeArgs(3, 5),
		RunE: func(cmd *cobra.Command, args []string) error {
			route, err := noderoutes.ParseRoute(args)
			if err != nil {
				return err
			}
			file, err := f.path(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return noderoutes.Add(cmd.Context(), file, route)
		},
	}
}

func (f *netRoute) newRemove() *cobra.Command {
	return &cobra.Command{
		Use:   "rm SUBNET...",
		Short: "Remove the routes to subnets",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var subnets []netip.Prefix
			for _, arg := range args {
				subnet, err := noderoutes.ParseSubnet(arg)
				if err != nil {
					return err
				}
				subnets = append(subnets, subnet)
			}
			file, err := f.path(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return noderoutes.Remove(cmd.Context(), file, subnets)
		},
	}
}

func (f *netRoute) newSet() *cobra.Command {
	return &cobra.Command{
		Use:   "set FILE",
		Short: "Replace all routes by those of another file (- is standard input)",
		Long:  "It checks the other file first, and reports every fault. Until it has no fault, nothing changes.",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			from := args[0]
			var text []byte
			var err error
			if from == "-" {
				from = "standard input"
				text, err = io.ReadAll(cmd.InOrStdin())
			} else {
				text, err = os.ReadFile(from)
			}
			if err != nil {
				return fmt.Errorf("cannot read the routes: %w", err)
			}
			file, err := f.path(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return noderoutes.Set(cmd.Context(), file, from, text)
		},
	}
}

// shownRoute is a route as `berth net route ls` prints it.
type shownRoute struct {
	Line    int    `json:"line"`
	Subnet  string `json:"subnet"`
	Gateway string `json:"gateway"`
	Link    string `json:"link,omitempty"`
	// InForce is "yes", or why the kernel does not have the route.
	InForce string `json:"inForce"`
}

func (f *netRoute) newList() *cobra.Command {
	var output show.Flag
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the routes of the file, and whether the kernel has them",
		Long:  "The exit code is 1 if the file has faults. berth keeps the routes of the last file without faults then.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			file, err := f.path(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			lines, fault := noderoutes.Read(file)
			handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
			if err != nil {
				return fmt.Errorf("cannot open a netlink socket: %w", err)
			}
			defer handle.Close()
			states, err := noderoutes.Compare(handle, lines)
			if err != nil {
				return err
			}
			shown, rows := []shownRoute{}, [][]string{}
			for i, l := range lines {
				shown = append(shown, shownRoute{Line: l.Number, Subnet: l.To.String(), Gateway: l.Via.String(), Link: l.Link, InForce: states[i]})
				rows = append(rows, []string{l.To.String(), l.Via.String(), show.Or(l.Link), states[i]})
			}
			err = output.Print(cmd.OutOrStdout(), shown, func(w io.Writer) error {
				return show.Table(w, []string{"SUBNET", "GATEWAY", "LINK", "IN FORCE"}, rows)
			})
			return errors.Join(err, fault)
		},
	}
	output.Register(cmd)
	return cmd
}
