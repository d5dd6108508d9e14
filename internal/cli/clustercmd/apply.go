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
	"github.com/berthrun/berth/internal/errs"
)

// drainTime is how long pods may take to end on a node that goes.
const drainTime = time.Minute

// newApply makes a cluster one of an edited file.
func newApply() *cobra.Command {
	var s session.Session
	var o cluster.ApplyOptions
	var file, image string
	var yes bool
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Make a cluster one of an edited cluster file",
		Long: "apply compares the cluster with the file, says what it will do, and does it when it is told to: nodes are added and\n" +
			"removed, mirrors of registries and labels are changed in place. A worker whose ports differ gets another container\n" +
			"and keeps its disk. A node whose mounts, image or kubeadm patches differ is made anew, one after the other, and loses\n" +
			"what is on its disk. What belongs to the cluster as a whole (its networks, feature gates) cannot be changed.\n" +
			"Before anything is changed, apply checks that all of it can be made.",
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
				release, err := session.Lock(c.Provider, described.Name)
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
	flags.StringVar(&image, "image", "", "image of all nodes, in place of those of the file")
	flags.BoolVarP(&yes, "yes", "y", false, "do it without being asked")
	addChangeFlags(cmd, &o)
	return cmd
}

// addChangeFlags gives a command the flags of all that change nodes of a cluster.
func addChangeFlags(cmd *cobra.Command, o *cluster.ApplyOptions) {
	o.Drain = drainTime
	session.AddDuration(cmd, &o.Drain, "drain", "how long pods may take to end on a node that goes; 0 does not ask them to")
	session.AddWait(cmd, &o.Wait)
}

// agree shows what will be done, and asks.
func agree(ctx context.Context, cmd *cobra.Command, c changes.Changes, name string, yes, piped bool) error {
	out := cmd.OutOrStdout()
	if c.None() {
		fmt.Fprintf(out, "the cluster %s is as it is described\n", name)
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
		return fmt.Errorf("there is nobody to ask; say --yes to have it done: %w", errs.Invalid)
	}
	return confirm(ctx, in, out)
}

// confirm asks. Whoever is asked may interrupt in place of an answer.
func confirm(ctx context.Context, in io.Reader, out io.Writer) error {
	fmt.Fprint(out, "Do it? [y/N] ")
	answered := make(chan string, 1)
	go func() {
		answer, _ := bufio.NewReader(in).ReadString('\n') // an end of file is no
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
