// Package cli is the command tree of `berth`. It is the only place that reads configuration, builds
// concrete types and connects them.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/berthrun/berth/internal/cli/clustercmd"
	"github.com/berthrun/berth/internal/cli/commandtree"
	"github.com/berthrun/berth/internal/cli/debugcmd"
	"github.com/berthrun/berth/internal/cli/eventscmd"
	"github.com/berthrun/berth/internal/cli/exitcode"
	"github.com/berthrun/berth/internal/cli/jobscmd"
	"github.com/berthrun/berth/internal/cli/nodecmd"
	"github.com/berthrun/berth/internal/cli/podcmd"
	"github.com/berthrun/berth/internal/cli/top"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
)

// Main runs the command line and returns the exit code. The name that the process was started
// with decides which program it is.
func Main(ctx context.Context) int {
	// The streaming libraries log errors through klog that they also return, and events that are
	// not errors, such as a closed connection.
	klog.SetLogger(logr.Discard())
	p := called(os.Args[0])
	root := p.root()
	prepare(root)
	if p.quiet != nil && p.quiet(os.Args[1:]) {
		root.SetErr(io.Discard)
	}
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	var exit *ExitError
	if errors.As(err, &exit) {
		if exit.Err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s%s\n", p.failure, errs.Message(exit.Err))
		}
		return exit.Code
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s%s\n", p.failure, errs.Message(err))
	var lost *criclient.LostError
	if p.name == "berth" && errors.As(err, &lost) { // other programs have the codes of the tool that they stand for
		return lostCode
	}
	return 1
}

// lostCode is the exit code of a command whose runtime ended during a request: EX_TEMPFAIL of sysexits.h, as the same
// command may work when the runtime is back.
const lostCode = 75

// ExitError makes the process end with its code.
type ExitError = exitcode.Error

// Root returns the whole command tree.
func Root() *cobra.Command {
	root := &cobra.Command{
		Use:   "berth",
		Short: "The container-runtime layer of a Kubernetes node",
		Long: "berth runs pods: `berth serve` is a CRI runtime for the kubelet, and the other commands are\n" +
			"clients of it, or of any CRI socket, for people.",
		// With Run an unknown command is an error of Args, as in the commands below.
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddCommand(newServe(), newConfig(), newVersion(), newPod(), podcmd.NewContainer(), newImage(), jobscmd.New(), eventscmd.New(), top.New(), newNet(), newInfo(), newDoctor(), newMetrics(), newPage(), debugcmd.New(),
		newUnpackLayer(), nodecmd.New(), clustercmd.New(), commandtree.New())
	return root
}

// prepare makes a command tree report an error once, with the correct usage.
func prepare(root *cobra.Command) {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(addFlagHelp)
	addUsageToErrors(root)
}
