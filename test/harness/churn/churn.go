// Package churn has a kubelet run pods of all kinds, several at a time, for a given time. The pods
// come from an API server, so that everything can happen to them that happens on a node of a
// cluster: they are resized in place, inspected by ephemeral containers, deleted at any moment.
// Meanwhile kubelet, daemon and supervisor are killed, stopped and upgraded.
//
// Each pod is one scenario (scenarios below) that knows the expected result. In the end no
// unexpected restart has happened, nothing is left, and neither berth nor the kubelet has logged an
// error that is not expected (logs.go).
package churn

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/controlplane"
	"github.com/berthrun/berth/test/harness/kubelet"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Options of a churn.
type Options struct {
	// Seed of everything random; 0 picks one.
	Seed uint64
	// Time is how long new pods are created.
	Time time.Duration
	// Pods is how many there are at a time.
	Pods int
	// Evented makes the kubelet use berth's events instead of lists.
	Evented bool
	// Only is the name of the one scenario to run, "" for all.
	Only string
}

// Seed returns the one that BERTH_CHURN_SEED names, to repeat an earlier run, or 0.
func Seed(t testing.TB) uint64 {
	t.Helper()
	return harness.Seed(t, "BERTH_CHURN_SEED")
}

// Time returns the one that BERTH_CHURN names ("1h"), or usual.
func Time(t testing.TB, usual time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv("BERTH_CHURN")
	if text == "" {
		return usual
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("BERTH_CHURN: %v", err)
	}
	return d
}

// run is one run.
type run struct {
	t    testing.TB
	b    *harness.Berth
	k    *kubelet.Kubelet
	core *rest.RESTClient
	seen *view
	opts Options
	dir  string // of the pods' directories

	mu          sync.Mutex
	played      map[string]int
	failed      int
	disruptions []disruption
}

// config of the kubelet: it rotates logs every few seconds.
const config = `clusterDNS: [192.0.2.53]
clusterDomain: cluster.local
containerLogMaxSize: 32Ki
containerLogMaxFiles: 40
containerLogMonitorInterval: 3s
serializeImagePulls: false
`

// Run runs a churn against a berth of its own.
func Run(t *testing.T, opts Options) {
	t.Helper()
	if opts.Seed == 0 {
		opts.Seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", opts.Seed)
	b := harness.Start(t, harness.Options{})
	importHealth(t, b)
	plane := controlplane.Start(t, b)
	r := &run{
		t: t, b: b, core: plane.Core, seen: newView(plane.Core), opts: opts, dir: filepath.Join(b.Dir, "churn"),
		played: map[string]int{},
	}
	r.prepare()
	began := time.Now()
	r.k = kubelet.Start(t, b, kubelet.Options{
		Kubeconfig: plane.KubeletConfig, Config: config + fmt.Sprintf("featureGates: {EventedPLEG: %v}\n", opts.Evented),
	})
	plane.AwaitNode()
	r.disruptions = append(r.disruptions, disruption{firstStart, began, time.Now()})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var follower sync.WaitGroup
	defer follower.Wait()
	follower.Go(func() {
		if err := r.seen.follow(ctx); err != nil {
			r.fail("%v", err)
		}
	})
	r.churn(ctx)
	r.awaitNothing()
	r.checkEvented()
	cancel()
	r.k.Stop()
	r.checkLogs()
	t.Logf("played: %s", r.summary())
}

// churn runs scenarios and disruptions until the time is over and all pods are gone.
func (r *run) churn(ctx context.Context) {
	end := time.Now().Add(r.opts.Time)
	next := make(chan *pod)
	var players sync.WaitGroup
	for range r.opts.Pods {
		players.Go(func() {
			for p := range next {
				r.play(ctx, p)
			}
		})
	}
	go func() {
		defer close(next)
		rng := rand.New(rand.NewPCG(r.opts.Seed, 1))
		for number := 0; time.Now().Before(end) && !r.tooManyFailures(); {
			for _, name := range r.shuffled(rng) {
				number++
				p := &pod{run: r, number: number, rng: rand.New(rand.NewPCG(r.opts.Seed, uint64(number)+100)), ordered: map[string]int32{}}
				p.name = fmt.Sprintf("%s-%d", name, number)
				p.dir = filepath.Join(r.dir, p.name)
				if time.Now().After(end) {
					return
				}
				next <- p
			}
		}
	}()
	r.disrupt(rand.New(rand.NewPCG(r.opts.Seed, 2)), end)
	players.Wait()
}

// shuffled returns the names of scenarios in a random order.
func (r *run) shuffled(rng *rand.Rand) []string {
	if r.opts.Only != "" {
		return []string{r.opts.Only}
	}
	all := scenarios()
	names := make([]string, 0, len(all))
	for _, s := range all {
		if s.request == "" || r.b.Refuses(s.request) == nil {
			names = append(names, s.name)
		}
	}
	rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	return names
}

// play runs one scenario to its end.
func (r *run) play(ctx context.Context, p *pod) {
	name := p.name[:strings.LastIndex(p.name, "-")]
	for _, s := range scenarios() {
		if s.name != name {
			continue
		}
		err := s.play(ctx, p)
		if err == nil {
			err = p.checkRestarts()
		}
		if err == nil {
			err = p.checkSandbox(ctx)
		}
		if err != nil {
			r.fail("%s: %v\nstatus: %s", p.name, err, describe(p.seen.last(p.name)))
		}
		// If the scenario has deleted the pod, this finds it gone.
		if _, err := p.remove(ctx, -1); err != nil {
			r.fail("%s: %v\nstatus: %s", p.name, err, describe(p.seen.last(p.name)))
		}
		p.seen.remove(p.name)
		r.mu.Lock()
		r.played[name]++
		r.mu.Unlock()
		return
	}
	r.fail("there is no scenario %q", name)
}

func (r *run) fail(format string, args ...any) {
	r.t.Helper()
	r.t.Errorf(time.Now().Format("15:04:05.000 ")+format, args...)
	r.mu.Lock()
	r.failed++
	r.mu.Unlock()
}

// tooManyFailures reports whether more failures would show nothing new.
func (r *run) tooManyFailures() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed >= 10
}

// prepare creates what controllers of a cluster would have created.
func (r *run) prepare() {
	r.t.Helper()
	if err := os.Mkdir(r.dir, 0o755); err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), require.Patience(time.Minute))
	defer cancel()
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	for _, err := range []error{
		r.core.Post().Resource("namespaces").Body(&corev1.Namespace{ObjectMeta: meta(namespace)}).Do(ctx).Error(),
		r.core.Post().Namespace(namespace).Resource("serviceaccounts").Body(&corev1.ServiceAccount{ObjectMeta: meta("default")}).Do(ctx).Error(),
		r.core.Post().Namespace(namespace).Resource("configmaps").Body(&corev1.ConfigMap{
			ObjectMeta: meta("kube-root-ca.crt"), Data: map[string]string{"ca.crt": "none"},
		}).Do(ctx).Error(),
		r.core.Post().Namespace(namespace).Resource("configmaps").Body(&corev1.ConfigMap{
			ObjectMeta: meta("config"), Data: map[string]string{"key": "value"},
		}).Do(ctx).Error(),
		r.core.Post().Namespace(namespace).Resource("secrets").Body(&corev1.Secret{
			ObjectMeta: meta("secret"), StringData: map[string]string{"key": "hidden"},
		}).Do(ctx).Error(),
	} {
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

// awaitNothing waits until the kubelet has removed all sandboxes of its pods.
func (r *run) awaitNothing() {
	r.t.Helper()
	var left string
	deadline := time.Now().Add(require.Patience(3 * time.Minute))
	for {
		list, err := r.b.Runtime.ListPodSandbox(r.b.Ctx(), &runtimeapi.ListPodSandboxRequest{})
		if err == nil && len(list.Items) == 0 {
			return
		}
		if left = fmt.Sprint(err); err == nil {
			left = fmt.Sprint(list.Items)
		}
		if time.Now().After(deadline) {
			r.fail("the kubelet has not removed all pods: %s", left)
			return
		}
		time.Sleep(time.Second)
	}
}

// checkEvented fails if the kubelet did not get its updates in the configured way.
func (r *run) checkEvented() {
	metrics, err := r.k.Get("/metrics")
	if err != nil {
		r.fail("the kubelet's metrics: %v", err)
		return
	}
	got := 0.0
	for line := range strings.Lines(string(metrics)) {
		if value, found := strings.CutPrefix(line, "kubelet_evented_pleg_connection_success_count "); found {
			got, _ = strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
		if strings.HasPrefix(line, "kubelet_evented_pleg") && !strings.Contains(line, "bucket") {
			r.t.Log(strings.TrimSpace(line))
		}
	}
	if (got > 0) != r.opts.Evented {
		r.fail("the kubelet connected %v times to berth's events, with EventedPLEG %v", got, r.opts.Evented)
	}
}

func (r *run) summary() string {
	var parts []string
	total := 0
	for _, s := range scenarios() {
		parts = append(parts, fmt.Sprintf("%s %d", s.name, r.played[s.name]))
		total += r.played[s.name]
	}
	return fmt.Sprintf("%d pods (%s); %d disruptions", total, strings.Join(parts, ", "), len(r.disruptions)-1)
}

// describe is the text about a pod in messages.
func describe(seen *corev1.Pod) string {
	if seen == nil {
		return "never seen"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s", seen.Status.Phase)
	for _, c := range seen.Status.Conditions {
		fmt.Fprintf(&b, "; %s %s %s %s", c.Type, c.Status, c.Reason, c.Message)
	}
	for _, status := range statuses(seen) {
		fmt.Fprintf(&b, "\n  %s %s: restarts %d, ready %v, state %s, before %s", status.Name, status.ContainerID,
			status.RestartCount, status.Ready, status.State.String(), status.LastTerminationState.String())
	}
	return b.String()
}
