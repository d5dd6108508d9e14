// Package top is `berth top`: the pods and containers of a node with what they use, and the jobs of the daemon, on a
// terminal, read again and again.
//
// The model knows what was read and what the user has chosen, and renders frames of lines; it knows no terminal. The
// screen draws frames, and makes the terminal what it was when the command ends. loop.go connects both with the runtime.
package top

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berthrun/berth/internal/cli/connect"
	"github.com/berthrun/berth/internal/cli/top/screen"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
)

type flags struct {
	endpoint  connect.Flag
	interval  time.Duration
	sort      string
	filter    string
	shell     string
	all, once bool
}

// minInterval is the shortest time between two readings: each costs the daemon a look at all cgroups.
const minInterval = time.Second

// New returns `berth top`.
func New() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show what pods and containers use, live, and the running jobs",
		Long: "top shows pods and containers with CPU, memory, network, state, restarts and age, and jobs with their stages.\n" +
			"Keys open the log of a container or a shell in it, sort and filter; ? lists them. Where input or output is no\n" +
			"terminal, and with --once, it prints one frame. NO_COLOR turns colours off. Jobs need berth; all else works with\n" +
			"other runtimes.",
		Example: "  berth top\n  berth top --sort memory --filter kube-system\n  berth top --once | grep web",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := f.model()
			if err != nil {
				return err
			}
			return f.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error { return f.run(ctx, cmd, conn, m) })
		},
	}
	f.endpoint.Register(cmd)
	cmd.Flags().DurationVarP(&f.interval, "interval", "i", 2*time.Second, "time between two readings, at least 1s")
	cmd.Flags().StringVarP(&f.sort, "sort", "s", byCPU.String(), "what to sort by: "+strings.Join(orderNames(), ", "))
	cmd.Flags().StringVarP(&f.filter, "filter", "f", "", "only pods with this in their name, or in the name of a container")
	cmd.Flags().StringVar(&f.shell, "shell", "sh", "the command, with arguments, that the key e runs in a container")
	cmd.Flags().BoolVarP(&f.all, "all", "a", false, "also pods that are not ready")
	cmd.Flags().BoolVar(&f.once, "once", false, "print one frame, and end")
	//nolint:errcheck // it fails only for an unknown flag
	cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(orderNames(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// model makes a model of the flags.
func (f *flags) model() (*model, error) {
	index := slices.Index(orderNames(), f.sort)
	switch {
	case index < 0:
		return nil, fmt.Errorf("cannot sort by %q: want one of %s: %w", f.sort, strings.Join(orderNames(), ", "), errs.Invalid)
	case f.interval < minInterval:
		return nil, fmt.Errorf("--interval %s is too short: want %s or more: %w", f.interval, minInterval, errs.Invalid)
	case len(strings.Fields(f.shell)) == 0:
		return nil, fmt.Errorf("--shell is empty: want a command: %w", errs.Invalid)
	}
	node, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("cannot read the host's name: %w", err)
	}
	return &model{node: node, interval: f.interval, order: order(index), filter: f.filter, all: f.all, now: time.Now()}, nil
}

func (f *flags) run(ctx context.Context, cmd *cobra.Command, conn *criclient.Conn, m *model) error {
	m.endpoint = conn.Endpoint
	in, inOK := cmd.InOrStdin().(*os.File)
	out, outOK := cmd.OutOrStdout().(*os.File)
	if f.once || !inOK || !outOK || !isTerminal(in) || !isTerminal(out) || os.Getenv("TERM") == "dumb" {
		return printOnce(ctx, conn, m, cmd.OutOrStdout())
	}
	l := loop{
		conn: conn, model: m, shell: strings.Fields(f.shell),
		screen: &screen.Screen{In: in, Out: out, Colour: os.Getenv("NO_COLOR") == ""},
	}
	return l.run(ctx)
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
