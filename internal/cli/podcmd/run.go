package podcmd

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/berthrun/berth/internal/cli/exitcode"
	"github.com/berthrun/berth/internal/cli/podrun"
	"github.com/berthrun/berth/internal/cli/podyaml"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
)

type runFlags struct {
	file, container                   string
	detach, remove, interactive, term bool
}

func (c *commands) newRun() *cobra.Command {
	var flags runFlags
	cmd := &cobra.Command{
		Use:   "run -f FILE",
		Short: "Run pods from Kubernetes YAML, in the foreground",
		Long: "run starts the pods of a YAML file: of Pods, Deployments, StatefulSets, DaemonSets and Jobs. They may use\n" +
			"ConfigMaps, Secrets, claims and Services of the same file. The command stays in the foreground and does the work\n" +
			"of a kubelet: it runs init containers in order, probes containers, restarts them with back-off, and prints their\n" +
			"output. Ctrl-C stops the pods with their grace period; a second Ctrl-C kills them. The exit code is that of the\n" +
			"first container that failed. With -d the command starts the pods once and exits; it refuses pods with fields that\n" +
			"need it in the foreground. It refuses a field that it does not honour, by line and name. The seccomp profile is\n" +
			"the runtime's default unless the file sets another one.",
		Example: "  berth pod run -f hello.yaml\n  berth pod run --rm -it -f shell.yaml\n  generate | berth pod run -d -f -",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				return c.run(ctx, cmd, conn, &flags)
			})
		},
	}
	cmd.Flags().StringVarP(&flags.file, "file", "f", "", "YAML file, - for stdin")
	cmd.Flags().BoolVarP(&flags.detach, "detach", "d", false, "start the pods once and exit")
	cmd.Flags().BoolVar(&flags.remove, "rm", false, "remove the pods with their volumes and logs when they end")
	cmd.Flags().BoolVarP(&flags.interactive, "interactive", "i", false, "connect stdin to the container")
	cmd.Flags().BoolVarP(&flags.term, "tty", "t", false, "give the container this terminal")
	cmd.Flags().StringVarP(&flags.container, "container", "c", "", "container for -i and -t (default: the first)")
	//nolint:errcheck // it fails only for an unknown flag
	cmd.MarkFlagRequired("file")
	cmd.MarkFlagsMutuallyExclusive("detach", "rm")
	cmd.MarkFlagsMutuallyExclusive("detach", "interactive")
	cmd.MarkFlagsMutuallyExclusive("detach", "tty")
	return cmd
}

func (c *commands) run(ctx context.Context, cmd *cobra.Command, conn *criclient.Conn, flags *runFlags) error {
	// The daemon and later commands have other working directories.
	for _, dir := range []*string{&c.volumeBase, &c.logBase, &c.claimBase, &c.seccompDir} {
		if *dir == "" {
			continue // the default
		}
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return fmt.Errorf("cannot find the directory %s: %w", *dir, err)
		}
		*dir = abs
	}
	data, err := readFile(cmd, flags.file)
	if err != nil {
		return err
	}
	manifest, err := podyaml.Parse(data)
	if err != nil {
		return fmt.Errorf("cannot run the pod of %s: %w", flags.file, err)
	}
	ctx, kill, stop := interrupts(ctx)
	defer stop()
	for _, note := range manifest.Notes {
		fmt.Fprintf(cmd.ErrOrStderr(), "berth: %s\n", note)
	}
	opts := podrun.Options{
		Conn: conn, VolumeBase: c.volumeBase, LogBase: c.logBase, ClaimBase: c.claimBase, SeccompDir: c.seccompDir,
		Say: cmd.ErrOrStderr(), Remove: flags.remove, Kill: kill,
	}
	if flags.detach {
		return start(ctx, cmd, opts, manifest)
	}
	opts.Out, opts.Err = cmd.OutOrStdout(), cmd.ErrOrStderr()
	if flags.interactive || flags.term {
		pods := manifest.Pods()
		if len(pods) != 1 {
			return fmt.Errorf("cannot connect a terminal to %d pods: -i and -t need a file with one pod: %w", len(pods), errs.Invalid)
		}
		if err := join(pods[0].Pod, flags); err != nil {
			return err
		}
		opts.Attach, opts.In = flags.container, cmd.InOrStdin()
	}
	code, err := podrun.RunAll(ctx, opts, manifest)
	if err != nil {
		return err
	}
	return exitcode.Of(code)
}

// start starts the pods once, and prints their ids.
func start(ctx context.Context, cmd *cobra.Command, opts podrun.Options, manifest *podyaml.Manifest) error {
	for _, w := range manifest.Workloads {
		if fields := w.ForegroundFields(); len(fields) > 0 {
			return fmt.Errorf("cannot run %s with -d: these fields need the command in the foreground: %s: %w", w, strings.Join(fields, ", "), errs.Invalid)
		}
	}
	for _, b := range manifest.Pods() {
		if fields := b.ForegroundFields(); len(fields) > 0 {
			return fmt.Errorf("cannot run pod %s with -d: these fields need the command in the foreground: %s: %w", b.Pod.Name, strings.Join(fields, ", "), errs.Invalid)
		}
	}
	ids, err := podrun.StartAll(ctx, opts, manifest)
	if err != nil {
		return err
	}
	for _, id := range ids {
		fmt.Fprintln(cmd.OutOrStdout(), id)
	}
	return nil
}

func readFile(cmd *cobra.Command, name string) ([]byte, error) {
	if name == "-" {
		data, err := io.ReadAll(cmd.InOrStdin())
		if err != nil {
			return nil, fmt.Errorf("cannot read the pod from stdin: %w", err)
		}
		return data, nil
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("cannot read the pod: %w", err)
	}
	return data, nil
}

// join makes the container of the flags one that has stdin and a terminal.
func join(pod *corev1.Pod, flags *runFlags) error {
	if flags.container == "" {
		flags.container = pod.Spec.Containers[0].Name
	}
	for i := range pod.Spec.Containers {
		container := &pod.Spec.Containers[i]
		if container.Name != flags.container {
			continue
		}
		container.Stdin = container.Stdin || flags.interactive
		container.StdinOnce = container.StdinOnce || flags.interactive
		container.TTY = container.TTY || flags.term
		return nil
	}
	return fmt.Errorf("pod %s has no container %q: %w", pod.Name, flags.container, errs.NotFound)
}

// interrupts returns a context that ends with the first Ctrl-C (or SIGTERM), or when the
// terminal is closed, and a channel that is closed by the second Ctrl-C. SIGHUP does not count: the end of a
// session sends SIGTERM with it.
func interrupts(ctx context.Context) (_ context.Context, kill <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals, killed := make(chan os.Signal, 2), make(chan struct{})
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	hangups := make(chan os.Signal, 1)
	if !signal.Ignored(syscall.SIGHUP) { // as nohup has it
		signal.Notify(hangups, syscall.SIGHUP)
	}
	done := make(chan struct{})
	go func() {
		first := true
		for {
			select {
			case <-signals:
			case <-hangups:
				cancel()
				continue
			case <-done:
				return
			}
			if !first {
				close(killed)
				signal.Stop(signals) // the third has its default effect
				return
			}
			first = false
			cancel()
		}
	}()
	return ctx, killed, func() {
		signal.Stop(signals)
		signal.Stop(hangups)
		close(done)
		cancel()
	}
}
