package debugcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/connect"
	"github.com/berthrun/berth/internal/cli/debugcmd/bundle"
	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/version"
)

// bundleFlags are those of `berth debug bundle`.
type bundleFlags struct {
	output, config string
	units, logs    []string
	lines          int
	cpu            time.Duration
}

func newBundle(endpoint *connect.Flag) *cobra.Command {
	var flags bundleFlags
	cmd := &cobra.Command{
		Use:   "bundle",
		Short: "Write a tar.gz with configuration, records, logs, goroutines and facts of the host, without secrets",
		Long: "bundle writes one file, which only its owner may read, and never overwrites one. It works while the daemon is down:\n" +
			"manifest.json in the bundle says what is missing, and why. A bundle takes at most two minutes and has at most 96 MiB\n" +
			"before it is compressed.\n\n" +
			"Secrets are left out: values of environment variables, arguments of containers, credentials of registries, keys,\n" +
			"and what looks like a password or a token by its form or its name. Names of pods, images, hosts and addresses stay:\n" +
			"look into a bundle before you pass it on.",
		Example: "  berth debug bundle\n  berth debug bundle -o /tmp/node1.tar.gz --cpu 10s --log /var/log/berth.log",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			return writeBundle(ctx, cmd, endpoint, &flags)
		},
	}
	cmd.Flags().StringVarP(&flags.output, "output", "o", "", "file to write (default: berth-debug-HOST-TIME.tar.gz in the working directory)")
	cmd.Flags().StringVar(&flags.config, "config", "/etc/berth/berth.toml", "configuration of the daemon")
	cmd.Flags().StringSliceVar(&flags.units, "unit", []string{"berth.service", "berth-supervisor.service"}, "units of systemd whose journals are taken along")
	cmd.Flags().StringSliceVar(&flags.logs, "log", nil, "further files whose last 8 MiB are taken along")
	cmd.Flags().IntVar(&flags.lines, "lines", 5000, "lines of each journal")
	cmd.Flags().DurationVar(&flags.cpu, "cpu", 0, "also record the daemon's use of the CPU for this long (0: no)")
	return cmd
}

func writeBundle(ctx context.Context, cmd *cobra.Command, endpoint *connect.Flag, flags *bundleFlags) (err error) {
	if flags.cpu < 0 || flags.cpu > time.Minute {
		return fmt.Errorf("--cpu %s: want 0s to 1m: %w", flags.cpu, errs.Invalid)
	}
	if flags.lines < 1 {
		return fmt.Errorf("--lines %d: want 1 or more: %w", flags.lines, errs.Invalid)
	}
	name := "berth-debug-" + hostname() + "-" + time.Now().UTC().Format("20060102-150405")
	target := flags.output
	if target == "" {
		target = name + ".tar.gz"
	}
	file, err := createAbsent(target)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.close()) }()

	conn, down := dialOnce(ctx, endpoint)
	if conn != nil {
		defer conn.Close()
	}
	cfg, fault := config.LoadDaemon(flags.config, nil)
	if cfg == nil {
		cfg = config.DefaultDaemon()
	}
	if conn != nil {
		useDirectories(ctx, conn, cfg)
	}
	sources := bundle.Daemon(conn, down, flags.cpu)
	sources = append(sources, bundle.Files(flags.config, cfg, fault)...)
	sources = append(sources, bundle.Logs(flags.units, flags.lines, logFiles(cfg, flags.logs))...)
	sources = append(sources, bundle.Host(cfg)...)
	manifest, err := bundle.Write(ctx, file, name, version.Version+" "+version.Commit, sources)
	if err != nil {
		return err
	}
	if err := file.publish(); err != nil {
		return err
	}
	for _, lacks := range manifest.Missing {
		fmt.Fprintf(cmd.ErrOrStderr(), "missing: %s: %s\n", lacks.Source, lacks.Why)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d files\n", target, len(manifest.Files))
	return err
}

// logFiles are the files that a user names, and the log of a supervisor that the daemon has started, which is there
// where systemd does not start it.
func logFiles(cfg *config.Daemon, named []string) []string {
	own := filepath.Join(cfg.State, "supervisor.log")
	if _, err := os.Stat(own); err != nil {
		return named
	}
	return append(slices.Clone(named), own)
}

// dialTime bounds the wait for the daemon.
const dialTime = 5 * time.Second

// dialOnce connects to the daemon. A conn that is nil has the reason beside it.
func dialOnce(ctx context.Context, endpoint *connect.Flag) (*criclient.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	conn, err := endpoint.Dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("the daemon does not answer: %w", err)
	}
	return conn, nil
}

// useDirectories takes the directories of the running daemon, which flags may have set, into a configuration.
func useDirectories(ctx context.Context, conn *criclient.Conn, cfg *config.Daemon) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	status, err := conn.Runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return // the bundle's manifest has the reason
	}
	var instance struct{ Root, State string }
	if json.Unmarshal([]byte(status.GetInfo()["instance"]), &instance) == nil && instance.Root != "" && instance.State != "" {
		cfg.Root, cfg.State = instance.Root, instance.State
	}
}

// hostname is part of a file's name.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "host"
	}
	return strings.Map(func(r rune) rune {
		if r == '-' || r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, name)
}

// absentFile is a file that appears under its name when it is whole.
type absentFile struct {
	*os.File
	target string
	// named says that it has a name of its own until then, which close removes.
	named bool
}

// createAbsent makes a file of mode 0600 for a name that is not taken. Until publish the file has no name, so that
// nothing is left of it whatever ends the process; only where the file system cannot do that, it has a temporary one.
func createAbsent(target string) (*absentFile, error) {
	if _, err := os.Lstat(target); err == nil {
		return nil, exists(target)
	}
	dir := filepath.Dir(target)
	file, err := os.OpenFile(dir, os.O_RDWR|tmpFile, 0o600)
	if err == nil {
		return &absentFile{File: file, target: target}, nil
	}
	if !noTmpFile(err) {
		return nil, fmt.Errorf("cannot write %s: %w", target, err)
	}
	if file, err = os.CreateTemp(dir, ".berth-debug-*"); err != nil {
		return nil, fmt.Errorf("cannot write %s: %w", target, err)
	}
	return &absentFile{File: file, target: target, named: true}, nil
}

func exists(target string) error {
	return fmt.Errorf("%s exists and is not overwritten; choose another name with -o: %w", target, errs.Exists)
}

// publish gives the file its name.
func (f *absentFile) publish() error {
	if err := f.Sync(); err != nil {
		return fmt.Errorf("cannot write %s: %w", f.target, err)
	}
	var err error
	if f.named {
		err = os.Link(f.Name(), f.target)
	} else {
		err = linkFile(f.File, f.target)
	}
	if errors.Is(err, fs.ErrExist) {
		return exists(f.target)
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", f.target, err)
	}
	return nil
}

// close closes the file, and removes its temporary name.
func (f *absentFile) close() error {
	err := f.Close()
	if f.named {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}
