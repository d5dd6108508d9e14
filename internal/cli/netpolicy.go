package cli

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berthrun/berth/internal/cluster/kubeapi/typedrest"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network/policy/controller"
	"github.com/berthrun/berth/internal/network/policy/ruleset"
	"github.com/berthrun/berth/internal/network/rulesetwatch"
)

// netPolicy has the flags of `berth net policy`.
type netPolicy struct {
	kubeconfig, node, table string
	check                   bool
}

func newNetPolicy() *cobra.Command {
	var f netPolicy
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Enforce the network policies of a cluster for the pods of this node",
		Long: "It watches the NetworkPolicy objects, pods and namespaces of the cluster, and keeps nftables rules for the pods\n" +
			"of this node: their ingress and egress. It is for nodes with the built-in network, and runs until a signal ends\n" +
			"it. The rules stay then: `nft delete table ip berth-policy` and `nft delete table ip6 berth-policy` remove them.\n" +
			"It needs CAP_NET_ADMIN, and an account that may list and watch pods, namespaces and `networkpolicies`.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := ruleset.CheckName(f.table); err != nil {
				return fmt.Errorf("--table: %w", err)
			}
			if f.check {
				err := f.probe(func(err error) { fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", errs.Message(err)) })
				if err == nil {
					_, err = fmt.Fprintln(cmd.OutOrStdout(), "this host can enforce network policies")
				}
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return f.run(ctx, slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "how to reach the API server (default: by the account of the pod that this runs in)")
	flags.StringVar(&f.node, "node-name", "", "the name of this node in the cluster (default: NODE_NAME, or else the name of this host)")
	flags.StringVar(&f.table, "table", ruleset.DefaultName, "the name of the nftables tables; each berth of a host needs its own")
	flags.BoolVar(&f.check, "check", false, "only check that this host can enforce policies")
	cmd.AddCommand(newNetPolicyList(), newNetPolicyExplain())
	return cmd
}

// probe returns an error if the host cannot enforce policies, and warns of what weakens them. It changes
// nothing.
func (f netPolicy) probe(warn func(error)) error {
	if err := ruleset.CanFilterBridged(); err != nil {
		return fmt.Errorf("cannot enforce network policies: %w", err)
	}
	rules := ruleset.New(f.table, nil)
	if err := rules.Probe(); err != nil {
		return fmt.Errorf("cannot enforce network policies: %w", err)
	}
	if err := rules.ProbeFrames(); err != nil {
		warn(err)
	}
	return nil
}

// nodeName is the name of this node in its cluster. By default that of the host, as the kubelet writes it.
func (f netPolicy) nodeName() (string, error) {
	if name := cmp.Or(f.node, os.Getenv("NODE_NAME")); name != "" {
		return name, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("cannot read the name of this host; want --node-name: %w", err)
	}
	return asNodeName(host), nil
}

// asNodeName is the name that the kubelet gives its node by the name of the host.
func asNodeName(host string) string { return strings.ToLower(strings.TrimSpace(host)) }

func (f netPolicy) run(ctx context.Context, log *slog.Logger) error {
	node, err := f.nodeName()
	if err != nil {
		return err
	}
	config, err := f.accountConfig()
	if err != nil {
		return err
	}
	core, networking, err := clientsOf(config)
	if err != nil {
		return err
	}
	err = f.probe(func(err error) { log.Warn("network policies are weaker on this node", "error", err) })
	if err != nil {
		return err
	}
	all := func(client cache.Getter, resource string) cache.ListerWatcher {
		return cache.NewListWatchFromClient(client, resource, corev1.NamespaceAll, fields.Everything())
	}
	rules := ruleset.New(f.table, nil)
	defer rules.Close()
	changes := make(chan struct{}, 1)
	watch, err := rulesetwatch.Open(func(context.Context) bool {
		select {
		case changes <- struct{}{}:
		default:
		}
		return true
	}, 0)
	if err != nil {
		log.Warn("removed rules are noticed within seconds only", "error", err)
	} else {
		defer watch.Close()
	}
	return controller.Run(ctx, controller.Config{
		Node: node, Pods: all(core, "pods"), Namespaces: all(core, "namespaces"), Policies: all(networking, "networkpolicies"),
		Rules: rules, FilterBridged: ruleset.FilterBridged, Changes: changes, Log: log,
	})
}

// accountConfig is the configuration of the controller.
func (f netPolicy) accountConfig() (*rest.Config, error) {
	if f.kubeconfig != "" {
		return f.userConfig()
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("this does not run in a pod of a cluster; want --kubeconfig: %w: %w", errs.Invalid, err)
	}
	return config, nil
}

// userConfig is the configuration that kubectl would use.
func (f netPolicy) userConfig() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("cannot use the kubeconfig: %w: %w", errs.Invalid, err)
	}
	return config, nil
}

// clientsOf are the clients of the API groups.
func clientsOf(config *rest.Config) (core, networking rest.Interface, err error) {
	if core, err = typedrest.New(config, nil, "/api", corev1.SchemeGroupVersion, corev1.AddToScheme); err == nil {
		networking, err = typedrest.New(config, nil, "/apis", networkingv1.SchemeGroupVersion, networkingv1.AddToScheme)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cannot use the API of the cluster: %w: %w", errs.Invalid, err)
	}
	return core, networking, nil
}
