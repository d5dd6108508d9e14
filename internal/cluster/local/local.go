// Package local has what every program needs that works on the clusters of this host: the provider, the kubeconfig
// files, and locks between processes.
package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/berthrun/berth/internal/cluster"
	"github.com/berthrun/berth/internal/cluster/kubeconfig"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/provider/berth"
	"github.com/berthrun/berth/internal/cluster/provider/command"
	"github.com/berthrun/berth/internal/cluster/redact"
	"github.com/berthrun/berth/internal/cluster/report"
	"github.com/berthrun/berth/internal/errs"
)

// Options choose a provider.
type Options struct {
	// Name is docker, podman, nerdctl, finch or berth; "" for that of $KIND_EXPERIMENTAL_PROVIDER, or else the first
	// one that works, berth last.
	Name string
	// FirstInstalled takes the first tool that is installed, as kind does, even if it does not work.
	FirstInstalled bool
	// Trace gets each call of the provider's tool, without secrets. nil for nobody.
	Trace func(call string)
	// Skipped gets the reason why another provider than the first one is used. nil for nobody.
	Skipped func(text string)
}

// providerVariable is kind's variable that selects the provider.
const providerVariable = "KIND_EXPERIMENTAL_PROVIDER"

// Open finds the provider and reads its facts. If no container tool is installed, it is the berth that runs on this
// host.
func Open(ctx context.Context, o Options) (provider.Provider, error) {
	find := provider.Options{Name: o.Name, Env: command.Host(), FirstInstalled: o.FirstInstalled}
	if o.Trace != nil {
		find.Trace = func(tool string, args []string) {
			o.Trace(tool + " " + strings.Join(withoutSecrets(args), " "))
		}
	}
	own := berth.Options{Env: find.Env, Trace: find.Trace}
	if cmp.Or(o.Name, find.Env[providerVariable]) == berth.Name {
		return openOwn(ctx, own)
	}
	engine, skipped, err := provider.Find(ctx, find)
	if errors.Is(err, provider.ErrNoTool) {
		engine, ownErr := openOwn(ctx, own)
		if ownErr == nil {
			return engine, nil
		}
		return nil, fmt.Errorf("%w; and the berth of this host cannot make nodes: %w", err, ownErr)
	}
	if err != nil && o.Name == "" && find.Env[providerVariable] != "" {
		return nil, fmt.Errorf("%s: %w", providerVariable, err)
	}
	if err != nil {
		return nil, err // not a nil of its type in the interface
	}
	for _, reason := range skipped {
		first, _, _ := strings.Cut(errs.Message(reason), "\n")
		if o.Skipped != nil {
			o.Skipped("using " + engine.Name() + ": " + first)
		}
	}
	return engine, nil
}

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

// NetworkVariable is the environment variable of kind that names another network for the nodes of a provider.
func NetworkVariable(provider string) string {
	if provider == "podman" {
		return "KIND_EXPERIMENTAL_PODMAN_NETWORK"
	}
	return "KIND_EXPERIMENTAL_DOCKER_NETWORK"
}

// Clusters returns the clusters of a provider. kubeconfigFile is the file that gets them, "" for that of kubectl.
func Clusters(engine provider.Provider, kubeconfigFile string, reporter report.Reporter) (*cluster.Clusters, error) {
	files, err := kubeconfig.Locate(kubeconfigFile, os.Getenv)
	if err != nil {
		return nil, err
	}
	return &cluster.Clusters{
		Provider: engine, Network: os.Getenv(NetworkVariable(engine.Name())), Kubeconfig: files, Reporter: reporter,
		FirstTime:     func(what string) bool { return firstTime(what, "/etc/machine-id") },
		LockRegistry:  func(ctx context.Context) (func(), error) { return lockRegistry(ctx, engine) },
		ShareCreation: func(ctx context.Context) (func(), error) { return shareCreation(ctx, engine) },
		OwnCreation:   func() (func(), error) { return ownCreation(engine) },
	}, nil
}
