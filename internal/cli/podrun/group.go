package podrun

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthrun/berth/internal/cli/podyaml"
	"github.com/berthrun/berth/internal/cli/podyaml/network"
)

// group runs the pods of a file.
type group struct {
	opts     Options
	manifest *podyaml.Manifest
	end      context.CancelCauseFunc

	mu        sync.Mutex // guards the maps
	addresses map[*podyaml.Bundle][]string
	running   map[*podyaml.Bundle]*Pod
}

// RunAll runs all pods of a file until they are done or ctx ends. The exit code is that
// of the first pod, in the file's order, that failed.
func RunAll(ctx context.Context, opts Options, m *podyaml.Manifest) (int, error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	g := newGroup(opts, m)
	g.end = end
	codes, failed := make([]int, len(m.Workloads)), make([]error, len(m.Workloads))
	var all sync.WaitGroup
	for i, w := range m.Workloads {
		all.Go(func() {
			if codes[i], failed[i] = g.runWorkload(ctx, w); failed[i] != nil {
				end(failed[i]) // a pod that cannot run at all ends the others
			}
		})
	}
	all.Wait()
	if err := errors.Join(failed...); err != nil {
		return 0, err
	}
	for _, code := range codes {
		if code != 0 {
			return code, nil
		}
	}
	return 0, nil
}

// StartAll starts all pods of a file once and leaves them. On error nothing is left.
func StartAll(ctx context.Context, opts Options, m *podyaml.Manifest) (ids []string, err error) {
	g := newGroup(opts, m)
	var started []*podRun
	defer func() {
		for _, k := range started {
			if err != nil {
				k.Remove = true
				err = errors.Join(err, k.end(ctx))
			}
		}
	}()
	for _, b := range m.Pods() {
		k, err := start(ctx, g.options(b, nil))
		if err != nil {
			return nil, err
		}
		started = append(started, k)
		ids = append(ids, k.sandboxID)
	}
	return ids, nil
}

func newGroup(opts Options, m *podyaml.Manifest) *group {
	opts.gone = &atomic.Bool{}
	return &group{
		opts: opts, manifest: m, addresses: map[*podyaml.Bundle][]string{}, running: map[*podyaml.Bundle]*Pod{},
	}
}

// options of one pod.
func (g *group) options(b *podyaml.Bundle, ready func()) Options {
	opts := g.opts
	opts.Bundle, opts.Ready = b, ready
	if len(g.manifest.Pods()) > 1 {
		opts.Prefix = b.Pod.Name + "/"
	}
	opts.Names = func() []network.Names { return g.names(b) }
	opts.HasAddresses = func(pod *Pod, ips []string) { g.hasAddresses(b, pod, ips) }
	opts.Ends = func() { g.gone(b) }
	return opts
}

// hasAddresses adds a pod to the hosts files of the running pods. It writes its own then.
func (g *group) hasAddresses(b *podyaml.Bundle, pod *Pod, ips []string) {
	g.mu.Lock()
	g.addresses[b] = ips
	others := slices.Collect(maps.Values(g.running))
	g.running[b] = pod
	g.mu.Unlock()
	rewriteHosts(others)
}

// gone removes a pod from the hosts files of the running pods.
func (g *group) gone(b *podyaml.Bundle) {
	g.mu.Lock()
	delete(g.addresses, b)
	delete(g.running, b)
	others := slices.Collect(maps.Values(g.running))
	g.mu.Unlock()
	rewriteHosts(others)
}

func rewriteHosts(pods []*Pod) {
	for _, pod := range pods {
		if err := pod.RewriteHosts(); err != nil {
			pod.k.say("%v", err)
		}
	}
}

// names are those of the Services that a pod sees, with the addresses of their pods.
func (g *group) names(of *podyaml.Bundle) []network.Names {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []network.Names
	for _, s := range g.manifest.Services {
		for _, b := range s.Pods {
			for _, ip := range g.addresses[b] {
				names := append(s.PodNames(b), s.Names()...)
				if s.Namespace != of.Pod.Namespace {
					names = append(s.PodNames(b), s.Names()[1:]...)
				}
				all = append(all, network.Names{IP: ip, Names: names})
			}
		}
	}
	return all
}

// retries is how many pods of a Job may still fail, or how often their containers may still restart.
type retries struct {
	mu   sync.Mutex
	left int
}

// take uses one retry, and reports whether one was left. A nil retries has no bound: take always reports true.
func (r *retries) take() bool {
	if r == nil {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left--
	return r.left >= 0
}

// runPod runs a pod, that of a Job again when it fails, with a pause that doubles.
func (g *group) runPod(ctx context.Context, w *podyaml.Workload, b *podyaml.Bundle, job *retries, ready func()) (int, error) {
	for pause := withDefaults(g.opts.Timings).BackoffMin; ; pause = min(2*pause, withDefaults(g.opts.Timings).BackoffMax) {
		opts := g.options(b, ready)
		if w.IsJob() && b.Pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure {
			opts.restarts = job // as Kubernetes counts them
		}
		code, err := Run(ctx, opts)
		if err != nil || code == 0 || !w.IsJob() || ctx.Err() != nil || !job.take() {
			return code, err
		}
		fmt.Fprintf(g.opts.Say, "berth: pod %s/%s of %s failed with exit code %d, another in %s\n", b.Pod.Namespace, b.Pod.Name, w, code, pause)
		if sleep(ctx, pause) != nil {
			return code, nil
		}
		b.Pod.UID = types.UID(uuid.NewString())
	}
}
