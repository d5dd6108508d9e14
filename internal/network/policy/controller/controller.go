// Package controller keeps a node's rules equal to the policies, pods and namespaces of its cluster,
// as the API server reports them.
package controller

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network/policy"
)

// Rules are the rules of the node. Package ruleset has them in nftables.
type Rules interface {
	// Apply enforces a model in one step. When it fails, what was enforced before stays.
	Apply(m *policy.Model) error
	// Intact reports whether what Apply has written is still there. If not, the next Apply writes all
	// of it.
	Intact() (bool, error)
}

// Config is what a controller needs.
type Config struct {
	// Node is the name of the node whose pods are isolated.
	Node string
	// Pods, Namespaces and Policies are those of the whole cluster.
	Pods, Namespaces, Policies cache.ListerWatcher
	Rules                      Rules
	// FilterBridged makes the kernel show packets between pods of one bridge to the rules. It runs with each
	// check, and reports whether the kernel did not do so before.
	FilterBridged func() (changed bool, err error)
	// Changes receives when some program has changed rules of the host; nil if nothing reports that. Then the
	// checks find it.
	Changes <-chan struct{}
	Log     *slog.Logger
	// CheckEvery is the time between two checks of the rules in the kernel; 0 is 5 seconds.
	CheckEvery time.Duration
}

const (
	// retryAfter is the pause after rules could not be written.
	retryAfter = time.Second
	// pause is the least time between two runs: changes of a rollout come in a row.
	pause = 100 * time.Millisecond
)

type controller struct {
	Config
	pods, namespaces, policies cache.Store
	gone                       gone
	// changed has room for one: many changes during one run of apply cause one more.
	changed chan struct{}
	// reported are the faults of policies that were logged, and still exist.
	reported map[string]bool
	// last is what was logged of the model.
	last counts
	// alone is whether it was logged that no pod is on the node.
	alone bool
}

type counts struct{ ingress, egress, grants int }

// Run enforces policies until ctx ends. It leaves the rules in force, and writes none before it knows
// all objects: the rules of an earlier run stay until then. It returns an error for an invalid
// configuration only.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Node == "" {
		return fmt.Errorf("want the name of the node: %w", errs.Invalid)
	}
	c := &controller{Config: cfg, changed: make(chan struct{}, 1), gone: gone{node: cfg.Node}, reported: map[string]bool{}, last: counts{-1, -1, -1}}
	if c.CheckEvery == 0 {
		c.CheckEvery = 5 * time.Second
	}
	var informers [3]cache.Controller
	c.pods, informers[0] = c.watch("pods", cfg.Pods, &corev1.Pod{}, trimPod)
	c.namespaces, informers[1] = c.watch("namespaces", cfg.Namespaces, &corev1.Namespace{}, trimMeta)
	c.policies, informers[2] = c.watch("network policies", cfg.Policies, &networkingv1.NetworkPolicy{}, trimMeta)
	var synced []cache.InformerSynced
	for _, i := range informers {
		go i.RunWithContext(ctx)
		synced = append(synced, i.HasSynced)
	}
	c.Log.Info("waiting for the pods, namespaces and network policies of the cluster", "node", c.Node)
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	c.notify()
	c.serve(ctx)
	return nil
}

// watch keeps a store of all objects of a kind.
func (c *controller) watch(what string, from cache.ListerWatcher, of runtime.Object, trim cache.TransformFunc) (cache.Store, cache.Controller) {
	return cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: reporting{cache.ToListerWatcherWithContext(from), from, what, c.Log},
		ObjectType:    of,
		Transform:     trim,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { c.notify() },
			UpdateFunc: func(old, now any) {
				c.gone.replaced(old, now)
				if differs(old, now) {
					c.notify()
				}
			},
			DeleteFunc: func(object any) {
				c.gone.deleted(object)
				c.notify()
			},
		},
	})
}

// notify makes serve write the rules again.
func (c *controller) notify() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// serve writes the rules after each change, and again when another program has changed them.
func (c *controller) serve(ctx context.Context) {
	check := time.NewTicker(c.CheckEvery)
	defer check.Stop()
	c.checkHost()
	for {
		select {
		case <-ctx.Done():
			return
		case <-check.C:
			c.checkHost()
			if c.intact() && !c.gone.due() {
				continue
			}
		case <-c.Changes:
			if c.intact() {
				continue
			}
		case <-c.changed:
		}
		wait := pause
		if err := c.apply(); err != nil {
			c.Log.Error("cannot enforce the network policies; the last rules stay, and it will be tried again", "error", err)
			wait = retryAfter
			c.notify()
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// intact reports whether the rules are in the kernel, as far as that can be read.
func (c *controller) intact() bool {
	intact, err := c.Rules.Intact()
	if err != nil {
		c.Log.Error("cannot check the rules of network policies; will be tried again", "error", err)
		return true
	}
	if !intact {
		c.Log.Warn("the rules of network policies were missing or changed; writing them again")
	}
	return intact
}

// checkHost checks what the rules depend on.
func (c *controller) checkHost() {
	changed, err := c.FilterBridged()
	if err != nil {
		c.Log.Error("network policies have no effect between pods of this node", "error", err)
	}
	if changed {
		c.Log.Warn("the kernel did not show packets between pods of this node to the rules; it does so now (bridge-nf-call-iptables, bridge-nf-call-ip6tables)")
	}
	alone := !slices.ContainsFunc(c.pods.List(), func(o any) bool { return o.(*corev1.Pod).Spec.NodeName == c.Node })
	if alone && !c.alone {
		c.Log.Warn("no pod of the cluster is on this node, so nothing is isolated; if that is wrong, set --node-name to the node's name", "node", c.Node)
	}
	c.alone = alone
}

// apply compiles what is known now, and writes it.
func (c *controller) apply() error {
	model, faults := policy.Compile(c.Node, c.cluster())
	c.report(faults)
	if err := c.Rules.Apply(model); err != nil {
		return err
	}
	now := counts{len(model.Isolated[policy.Ingress]), len(model.Isolated[policy.Egress]), len(model.Grants)}
	if now != c.last {
		c.Log.Info("enforcing network policies", "ingressAddresses", now.ingress, "egressAddresses", now.egress, "grants", now.grants)
		c.last = now
	}
	return nil
}

// report logs each fault once while it exists.
func (c *controller) report(faults []error) {
	now := map[string]bool{}
	for _, err := range faults {
		now[err.Error()] = true
		if !c.reported[err.Error()] {
			c.Log.Warn("a part of a network policy cannot be read, and allows nothing", "error", err)
		}
	}
	c.reported = now
}

// cluster is what the stores have.
func (c *controller) cluster() policy.Cluster {
	known := policy.Cluster{Namespaces: map[string]map[string]string{}}
	for _, object := range c.pods.List() {
		if p, ok := policy.PodOf(object.(*corev1.Pod)); ok {
			known.Pods = append(known.Pods, p)
		}
	}
	known.Gone = c.gone.rest(known.Pods)
	for _, object := range c.namespaces.List() {
		n := object.(*corev1.Namespace)
		known.Namespaces[n.Name] = n.Labels
	}
	for _, object := range c.policies.List() {
		known.Policies = append(known.Policies, object.(*networkingv1.NetworkPolicy))
	}
	return known
}

// trimPod keeps what policies need of a pod: a node holds the pods of the whole cluster.
func trimPod(object any) (any, error) {
	p, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	trimmed := &corev1.Pod{
		ObjectMeta: identity(p.ObjectMeta),
		Spec: corev1.PodSpec{
			NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork,
			Containers: trimContainers(p.Spec.Containers), InitContainers: trimContainers(p.Spec.InitContainers),
		},
		Status: corev1.PodStatus{Phase: p.Status.Phase, PodIPs: p.Status.PodIPs},
	}
	return trimmed, nil
}

func trimContainers(all []corev1.Container) []corev1.Container {
	var kept []corev1.Container
	for _, c := range all {
		if len(c.Ports) > 0 {
			kept = append(kept, corev1.Container{Ports: c.Ports, RestartPolicy: c.RestartPolicy})
		}
	}
	return kept
}

// identity is the part of an object's metadata that is used.
func identity(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, Labels: m.Labels,
	}
}

// trimMeta drops the managed fields and annotations, which are most of a small object.
func trimMeta(object any) (any, error) {
	if m, ok := object.(metav1.Object); ok {
		m.SetManagedFields(nil)
		m.SetAnnotations(nil)
	}
	return object, nil
}
