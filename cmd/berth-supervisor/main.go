// Command berth-supervisor is the parent of containers, and what their inits
// start from. Its roles: "keep" (the keeper), "serve" (the supervisor, started by
// the keeper), "selftest", "version", "init", which libcontainer executes,
// "launch", which runs the OCI runtime of a handler, "shim-relay", which passes streams on
// to a shim, "shim-events", which takes the events of shims, "hold", which namespaces
// belong to while they are made, "filter", which compiles a seccomp profile, and "pod-init",
// pid 1 of a PID namespace that a pod's containers share, which begins before main. So do
// the roles of package child, which become processes of containers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	_ "github.com/opencontainers/runc/libcontainer/nsenter" // its C code runs before Go does

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/keep"
	"github.com/berthrun/berth/internal/supervisor/ownstart/filter"
	"github.com/berthrun/berth/internal/supervisor/podinit"
	"github.com/berthrun/berth/internal/supervisor/selftest"
	"github.com/berthrun/berth/internal/supervisor/server"
	"github.com/berthrun/berth/internal/supervisor/server/ocicommand/launch"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/supervisor/server/shim/relay"
	"github.com/berthrun/berth/internal/supervisor/server/shim/sink"
	_ "github.com/berthrun/berth/internal/supervisor/timerslack" // its C code runs before Go does
	"github.com/berthrun/berth/internal/sys/sysproc"
	"github.com/berthrun/berth/internal/version"
)

// Until main begins, and no longer, Go runs on the process's first thread, unless it is
// locked here. An init stays on it: from no other one does the kernel take the SELinux
// label of a keyring. A supervisor's main keeps it: libcontainer gives up a thread in the
// mount namespace of each container, and the first thread would stay there.
func init() { //nolint:gochecknoinits // see above
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		runtime.LockOSThread()
	}
	if len(os.Args) > 1 && os.Args[1] == "init" {
		ociruntime.Init()
	}
	if len(os.Args) > 1 && os.Args[1] == filter.Role {
		filter.Capture()
	}
}

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "hold":
			podinit.Hold()
		case filter.Role:
			filter.Capture()
		}
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{ReplaceAttr: errs.LogAttr}))) // keeper and supervisor log to one file
	if err := run(os.Args[1:]); err != nil {
		slog.Error("berth-supervisor ends", "error", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: berth-supervisor keep|serve|selftest|version")
	}
	switch args[0] {
	case "keep":
		opts, err := keep.ParseArgs(args[1:])
		if err != nil {
			return err
		}
		return keep.Run(context.Background(), opts)
	case "serve":
		return serve(args[1:])
	case launch.Role:
		if len(args) != 2 {
			return errors.New("usage: berth-supervisor launch ORDER")
		}
		return launch.Run(args[1])
	case relay.Role:
		if len(args) != 2 {
			return errors.New("usage: berth-supervisor shim-relay ORDER")
		}
		return relay.Run(args[1])
	case sink.Role:
		if len(args) != 2 {
			return errors.New("usage: berth-supervisor shim-events DIRECTORY")
		}
		return sink.Run(args[1])
	case "selftest":
		return selftest.Run()
	case "version", "--version":
		fmt.Println("berth-supervisor", version.String())
		return nil
	}
	return fmt.Errorf("unknown role %q", args[0])
}

func serve(args []string) error {
	opts := server.Options{Version: version.Version}
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	flags.StringVar(&opts.StateDir, "state", "", "state directory, on tmpfs")
	flags.BoolVar(&opts.ExitWhenIdle, "exit-when-idle", false, "end when there has been no container and no client for a while")
	flags.BoolVar(&opts.OwnInit, "own-init", true, "let berth's own init start the containers that it can, and libcontainer the others")
	level := slog.LevelInfo
	flags.TextVar(&level, "log-level", level, "debug, info, warn or error")
	if err := flags.Parse(args); err != nil {
		return err
	}
	opts.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level, ReplaceAttr: errs.LogAttr}))
	slog.SetDefault(opts.Logger)
	if err := sysproc.CleanSignals(); err != nil {
		return err
	}
	keeper, err := keep.Attach(context.Background())
	switch {
	case err == nil:
		opts.Keeper = keeper
	case !errors.Is(err, errs.NotFound):
		return err
	}
	s, err := server.New(opts)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := s.Run(ctx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		os.Exit(stoppedBySignal)
	}
	return nil
}

// stoppedBySignal tells the keeper that there may be work left: 0 would mean that
// nobody needs a supervisor.
const stoppedBySignal = 2
