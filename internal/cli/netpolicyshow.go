package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network/policy"
)

func newNetPolicyList() *cobra.Command {
	var f netPolicy
	var output show.Flag
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the pods of the cluster, and the policies that isolate them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := f.explain(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return output.Print(cmd.OutOrStdout(), all, func(w io.Writer) error { return printIsolated(w, all) })
		},
	}
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "how to reach the API server (default: as kubectl)")
	output.Register(cmd)
	return cmd
}

func newNetPolicyExplain() *cobra.Command {
	var f netPolicy
	var output show.Flag
	cmd := &cobra.Command{
		Use:   "explain [NAMESPACE/]POD",
		Short: "Show what the policies of the cluster allow for a pod",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			if !strings.Contains(name, "/") {
				name = corev1.NamespaceDefault + "/" + name
			}
			all, err := f.explain(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			for _, e := range all {
				if e.Pod == name {
					return output.Print(cmd.OutOrStdout(), e, func(w io.Writer) error { return printExplanation(w, e) })
				}
			}
			return fmt.Errorf("no pod %s with an address of its own in the cluster: %w", name, errs.NotFound)
		},
	}
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "how to reach the API server (default: as kubectl)")
	output.Register(cmd)
	return cmd
}

// explain asks the API server, and explains all pods.
func (f netPolicy) explain(ctx context.Context, warnings io.Writer) ([]policy.Explanation, error) {
	config, err := f.userConfig()
	if err != nil {
		return nil, err
	}
	core, networking, err := clientsOf(config)
	if err != nil {
		return nil, err
	}
	var pods corev1.PodList
	var namespaces corev1.NamespaceList
	var policies networkingv1.NetworkPolicyList
	if err := core.Get().Resource("pods").Do(ctx).Into(&pods); err != nil {
		return nil, fmt.Errorf("cannot list the pods of the cluster: %w: %w", errs.Unavailable, err)
	}
	if err := core.Get().Resource("namespaces").Do(ctx).Into(&namespaces); err != nil {
		return nil, fmt.Errorf("cannot list the namespaces of the cluster: %w: %w", errs.Unavailable, err)
	}
	if err := networking.Get().Resource("networkpolicies").Do(ctx).Into(&policies); err != nil {
		return nil, fmt.Errorf("cannot list the network policies of the cluster: %w: %w", errs.Unavailable, err)
	}
	known := policy.Cluster{Namespaces: map[string]map[string]string{}}
	for i := range pods.Items {
		if p, ok := policy.PodOf(&pods.Items[i]); ok {
			known.Pods = append(known.Pods, p)
		}
	}
	for _, n := range namespaces.Items {
		known.Namespaces[n.Name] = n.Labels
	}
	for i := range policies.Items {
		known.Policies = append(known.Policies, &policies.Items[i])
	}
	all, faults := policy.Explain(known)
	for _, fault := range faults {
		fmt.Fprintf(warnings, "warning: %s\n", errs.Message(fault))
	}
	return all, nil
}

func printIsolated(w io.Writer, all []policy.Explanation) error {
	names := func(allowances []policy.Allowance) string {
		if allowances == nil {
			return "open"
		}
		var names []string
		for _, a := range allowances {
			names = append(names, a.Policy[strings.Index(a.Policy, "/")+1:])
		}
		return strings.Join(names, ",")
	}
	var rows [][]string
	for _, e := range all {
		namespace, name, _ := strings.Cut(e.Pod, "/")
		rows = append(rows, []string{namespace, name, e.Node, strings.Join(e.Addrs, ","), names(e.Ingress), names(e.Egress)})
	}
	return show.Table(w, []string{"NAMESPACE", "POD", "NODE", "ADDRESSES", "INGRESS", "EGRESS"}, rows)
}

func printExplanation(w io.Writer, e policy.Explanation) error {
	fmt.Fprintf(w, "Pod %s, node %s, addresses %s\n", e.Pod, show.Or(e.Node), strings.Join(e.Addrs, ", "))
	for _, side := range []struct {
		title, peer string
		allowances  []policy.Allowance
	}{{"Ingress", "from", e.Ingress}, {"Egress", "to", e.Egress}} {
		if side.allowances == nil {
			fmt.Fprintf(w, "%s: open, no policy selects the pod\n", side.title)
			continue
		}
		fmt.Fprintf(w, "%s: isolated, allowed are\n", side.title)
		for _, a := range side.allowances {
			if len(a.Rules) == 0 {
				fmt.Fprintf(w, "  by %s: nothing\n", a.Policy)
			}
			for _, r := range a.Rules {
				fmt.Fprintf(w, "  by %s: %s %s; ports %s\n", a.Policy, side.peer, strings.Join(r.Peers, ", "), strings.Join(r.Ports, ", "))
			}
		}
	}
	return nil
}
