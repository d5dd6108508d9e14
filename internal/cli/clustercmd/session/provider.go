package session

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cluster/local"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/provider/berth"
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

// Open finds the provider and reads its facts.
func (f *ProviderFlags) Open(cmd *cobra.Command) (provider.Provider, error) {
	o := local.Options{
		Name: f.name, FirstInstalled: cmd.Root().Name() == KindName,
		Skipped: func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), text) },
	}
	if f.verbose > 0 {
		o.Trace = func(call string) { fmt.Fprintln(cmd.ErrOrStderr(), "+ "+call) }
	}
	return local.Open(cmd.Context(), o)
}
