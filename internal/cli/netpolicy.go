package cli

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
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
			"It needs CAP_NET_ADMIN, and an account that may list and watch pods, namespaces and networkpolicies.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.check {
				return f.probe()
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

// probe returns an error if the host cannot enforce policies.
func (f netPolicy) probe() error {
	if err := ruleset.FilterBridged(); err != nil {
		return fmt.Errorf("cannot enforce network policies: %w", err)
	}
	if err := ruleset.New(f.table, nil).Probe(); err != nil {
		return fmt.Errorf("cannot enforce network policies: %w", err)
	}
	return nil
}

func (f netPolicy) run(ctx context.Context, log *slog.Logger) error {
	node := cmp.Or(f.node, os.Getenv("NODE_NAME"))
	if node == "" {
		var err error
		if node, err = os.Hostname(); err != nil {
			return fmt.Errorf("cannot read the name of this host; want --node-name: %w", err)
		}
	}
	config, err := f.accountConfig()
	if err != nil {
		return err
	}
	core, networking, err := clientsOf(config)
	if err != nil {
		return err
	}
	if err := f.probe(); err != nil {
		return err
	}
	all := func(client cache.Getter, resource string) cache.ListerWatcher {
		return cache.NewListWatchFromClient(client, resource, corev1.NamespaceAll, fields.Everything())
	}
	rules := ruleset.New(f.table, nil)
	defer rules.Close()
	return controller.Run(ctx, controller.Config{
		Node: node, Pods: all(core, "pods"), Namespaces: all(core, "namespaces"), Policies: all(networking, "networkpolicies"),
		Rules: rules, Log: log,
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
