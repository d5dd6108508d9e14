package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/provider/berth"
	"github.com/berthrun/berth/internal/cluster/provider/command"
	"github.com/berthrun/berth/internal/cluster/redact"
)

// ProviderFlags are the flags that choose the provider.
type ProviderFlags struct {
	name    string
	verbose int
}

func (f *ProviderFlags) AddFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.name, "provider", "", "container engine: docker, podman, nerdctl, finch or berth; empty: $KIND_EXPERIMENTAL_PROVIDER, or the first one that works, berth last")
	//nolint:errcheck // it fails only for an unknown flag
	cmd.RegisterFlagCompletionFunc("provider", cobra.FixedCompletions([]string{"docker", "podman", "nerdctl", "finch", berth.Name}, cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().IntVarP(&f.verbose, "verbosity", "v", 0, "1 or more: show the calls of the container engine")
}

// Open finds the provider and reads its facts. If no container tool is installed, it is the berth
// that runs on this host.
func (f *ProviderFlags) Open(cmd *cobra.Command) (provider.Provider, error) {
	ctx := cmd.Context()
	o := provider.Options{Name: f.name, Env: command.Host(), FirstInstalled: cmd.Root().Name() == KindName}
	if f.verbose > 0 {
		o.Trace = func(tool string, args []string) {
			fmt.Fprintf(cmd.ErrOrStderr(), "+ %s %s\n", tool, strings.Join(withoutSecrets(args), " "))
		}
	}
	own := berth.Options{Env: o.Env, Trace: o.Trace}
	if cmp.Or(o.Name, o.Env[providerVariable]) == berth.Name {
		return openOwn(ctx, own)
	}
	engine, skipped, err := provider.Find(ctx, o)
	if errors.Is(err, provider.ErrNoTool) {
		engine, ownErr := openOwn(ctx, own)
		if ownErr == nil {
			return engine, nil
		}
		return nil, fmt.Errorf("%w; and the berth of this host cannot make nodes: %w", err, ownErr)
	}
	if err != nil && f.name == "" && o.Env[providerVariable] != "" {
		return nil, fmt.Errorf("%s: %w", providerVariable, err)
	}
	if err != nil {
		return nil, err // not a nil of its type in the interface
	}
	for _, reason := range skipped {
		first, _, _ := strings.Cut(reason.Error(), "\n")
		fmt.Fprintf(cmd.ErrOrStderr(), "using %s: %s\n", engine.Name(), first)
	}
	return engine, nil
}

// providerVariable is kind's variable that selects the engine.
const providerVariable = "KIND_EXPERIMENTAL_PROVIDER"

func openOwn(ctx context.Context, o berth.Options) (provider.Provider, error) {
	engine, err := berth.Open(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("cannot use berth as provider: %w", err)
	}
	return engine, nil
}

// withoutSecrets hides values of the environment, which may be passwords of proxies, and tokens.
func withoutSecrets(args []string) []string {
	shown := make([]string, 0, len(args))
	for i, arg := range args {
		if i > 0 && (args[i-1] == "-e" || args[i-1] == "--env") {
			arg, _, _ = strings.Cut(arg, "=")
			arg += "=…"
		}
		shown = append(shown, redact.Text(arg))
	}
	return shown
}

// networkName returns the name of the network for nodes; "" is the default.
func networkName(engine string) string { return os.Getenv(NetworkVariable(engine)) }

// NetworkVariable is the environment variable of kind that names another network.
func NetworkVariable(engine string) string {
	if engine == "podman" {
		return "KIND_EXPERIMENTAL_PODMAN_NETWORK"
	}
	return "KIND_EXPERIMENTAL_DOCKER_NETWORK"
}
