package debugcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cli/connect"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/profile"
)

func newProfile(endpoint *connect.Flag) *cobra.Command {
	var req berthapi.ProfileRequest
	var target string
	cmd := &cobra.Command{
		Use:   "profile NAME",
		Short: "Write a profile of the running daemon, for `go tool pprof`",
		Long: "NAME is one of " + strings.Join(profile.Names(), ", ") + ".\n\n" +
			"cpu and trace record for --duration. block and mutex count for --duration, and then show what goroutines waited for.\n" +
			"trace is for `go tool trace`. Only root may profile the daemon; other members of the socket's group are refused.",
		Example: "  berth debug profile heap -o heap.pprof && go tool pprof -top heap.pprof\n  berth debug profile goroutine --text",
		Args:    cobra.ExactArgs(1),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return profile.Names(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Name = args[0]
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			return endpoint.Use(cmd, func(_ context.Context, conn *criclient.Conn) error {
				return writeProfile(ctx, cmd, conn, req, target)
			})
		},
	}
	cmd.Flags().StringVarP(&target, "output", "o", "", "file to write, which must not exist (default: the standard output)")
	cmd.Flags().DurationVarP(&req.Duration, "duration", "d", 0, "how long to record (cpu and trace: 10s; block and mutex: what was counted so far)")
	cmd.Flags().BoolVar(&req.Text, "text", false, "print text for people; not for cpu and trace")
	return cmd
}

func writeProfile(ctx context.Context, cmd *cobra.Command, conn *criclient.Conn, req berthapi.ProfileRequest, target string) (err error) {
	if target == "" {
		if out, ok := cmd.OutOrStdout().(*os.File); ok && !req.Text && term.IsTerminal(int(out.Fd())) {
			return fmt.Errorf("a profile is not for a terminal: choose a file with -o, or --text: %w", errs.Invalid)
		}
		return conn.Berth.Profile(ctx, req, cmd.OutOrStdout())
	}
	file, err := createAbsent(target)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.close()) }()
	began := time.Now()
	if err := conn.Berth.Profile(ctx, req, file); err != nil {
		return err
	}
	if err := file.publish(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: profile %s, recorded in %s\n", target, req.Name, time.Since(began).Round(time.Millisecond))
	return err
}
