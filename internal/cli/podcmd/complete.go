package podcmd

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// completionTime bounds the time of a completion.
const completionTime = 2 * time.Second

// completePods offers names of pods for the first argument, or for all.
func (c *commands) completePods(all bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 && !all {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
		defer cancel()
		conn, err := c.endpoint.Dial(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer conn.Close()
		resp, err := conn.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []cobra.Completion
		for _, pod := range resp.Items {
			names = append(names, podName(pod))
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// containerFlag adds -c with completion of the names in the pod that the first
// argument names.
func (c *commands) containerFlag(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVarP(name, "container", "c", "", "container of the pod (default: the only one)")
	//nolint:errcheck // it fails only for an unknown flag
	cmd.RegisterFlagCompletionFunc("container", func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
		defer cancel()
		conn, err := c.endpoint.Dial(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer conn.Close()
		pod, err := findPod(ctx, conn, args[0])
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		containers, err := containersOf(ctx, conn, pod)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []cobra.Completion
		for _, container := range latest(containers) {
			names = append(names, container.Metadata.GetName())
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	})
}
