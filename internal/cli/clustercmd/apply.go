package clustercmd

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berthrun/berth/internal/cli/clustercmd/session"
	"github.com/berthrun/berth/internal/cluster"
	"github.com/berthrun/berth/internal/cluster/changes"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/local"
	"github.com/berthrun/berth/internal/errs"
)

// drainTime is how long pods on a removed node may take to end.
const drainTime = time.Minute

// newApply reconciles a cluster with its file.
func newApply() *cobra.Command {
	var s session.Session
	var o cluster.ApplyOptions
	var file, image string
	var yes bool
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Reconcile a cluster with its file",
		Long: "apply compares the cluster with the file, shows the changes, and asks before it makes them. It adds and removes\n" +
			"nodes, and changes registry mirrors and labels in place. A worker whose ports differ gets a new container and\n" +
			"keeps its disk. apply recreates nodes whose mounts, image or kubeadm patches differ, one after the other; they\n" +
			"lose their disks. It cannot change what belongs to the cluster as a whole, such as networks and feature gates.\n" +
			"apply first checks that it can make every change.",
		Example: "  berth cluster apply -f cluster.yaml\n" +
			"  berth cluster apply -f cluster.yaml --yes --wait 2m",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return fmt.Errorf("-f is missing: name the cluster file: %w", errs.Invalid)
			}
			name, err := s.GivenName(nil)
			if err != nil {
				return err
			}
			described, err := description(cmd, file, config.Options{Name: name, Image: image})
			if err != nil {
				return err
			}
			return s.Use(cmd, func(ctx context.Context, c *cluster.Clusters) error {
				release, err := local.Lock(c.Provider, described.Name)
				if err != nil {
					return err
				}
				defer release()
				o.Agree = func(c changes.Changes) error { return agree(ctx, cmd, c, described.Name, yes, file == "-") }
				return c.Apply(ctx, described, o)
			})
		},
	}
	s.AddFlags(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&file, "file", "f", "", "cluster file; - is standard input")
	flags.StringVar(&image, "image", "", "node image for all nodes; overrides the file")
	flags.BoolVarP(&yes, "yes", "y", false, "do not ask")
	addChangeFlags(cmd, &o)
	return cmd
}

// addChangeFlags gives a command the flags of all that change nodes of a cluster.
func addChangeFlags(cmd *cobra.Command, o *cluster.ApplyOptions) {
	o.Drain = drainTime
	session.AddDuration(cmd, &o.Drain, "drain", "how long to wait until the pods of a removed node have ended; 0: do not drain")
	session.AddWait(cmd, &o.Wait)
}

// agree shows the changes, and asks for confirmation.
func agree(ctx context.Context, cmd *cobra.Command, c changes.Changes, name string, yes, piped bool) error {
	out := cmd.OutOrStdout()
	if c.None() {
		fmt.Fprintf(out, "the cluster %s matches its file\n", name)
		return nil
	}
	for _, line := range c.Lines() {
		fmt.Fprintln(out, line)
	}
	if yes {
		return nil
	}
	in, terminal := cmd.InOrStdin().(*os.File)
	if piped || !terminal || !term.IsTerminal(int(in.Fd())) {
		return fmt.Errorf("there is no terminal to ask on; use --yes to apply the changes: %w", errs.Invalid)
	}
	return confirm(ctx, in, out)
}

// confirm asks for confirmation. The user may interrupt instead of answering.
func confirm(ctx context.Context, in io.Reader, out io.Writer) error {
	fmt.Fprint(out, "Apply these changes? [y/N] ")
	answered := make(chan string, 1)
	go func() {
		answer, _ := bufio.NewReader(in).ReadString('\n') // an end of file means no
		answered <- strings.ToLower(strings.TrimSpace(answer))
	}()
	select {
	case <-ctx.Done():
		return fmt.Errorf("nothing was done: %w", context.Cause(ctx))
	case answer := <-answered:
		if answer != "y" && answer != "yes" {
			return fmt.Errorf("nothing was done: %w", errs.State)
		}
	}
	return nil
}
