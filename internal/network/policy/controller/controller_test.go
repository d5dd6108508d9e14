package controller

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network/policy"
)

// source lists what it has, and sends what comes.
type source struct {
	list   runtime.Object
	events *watch.FakeWatcher
	// failures is the number of lists that fail first.
	mu       sync.Mutex
	failures int
}

func (s *source) List(metav1.ListOptions) (runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failures > 0 {
		s.failures--
		return nil, errors.New("no answer")
	}
	return s.list, nil
}

func (s *source) Watch(metav1.ListOptions) (watch.Interface, error) { return s.events, nil }

func (s *source) IsWatchListSemanticsUnSupported() bool { return true }

// rules remember the models.
type rules struct {
	applied chan *policy.Model
	mu      sync.Mutex
	fail    int
	intact  bool
}

func (r *rules) Apply(m *policy.Model) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail > 0 {
		r.fail--
		return errors.New("the kernel refuses")
	}
	r.intact = true
	r.applied <- m
	return nil
}

func (r *rules) Intact() (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.intact, nil
}

// world is a cluster of one pod, db, without policies.
type world struct {
	pods, namespaces, policies *source
	rules                      *rules
	log                        lockedBuffer
	node                       string
	checkEvery                 time.Duration
	changes                    chan struct{}
	// filter is what FilterBridged does.
	filter func() (changed bool, err error)
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func pod(name, addr string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{NodeName: "n1"},
		Status:     corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: addr}}},
	}
}

func newWorld() *world {
	list := func(l runtime.Object) *source { return &source{list: l, events: watch.NewFake()} }
	return &world{
		pods:       list(&corev1.PodList{Items: []corev1.Pod{*pod("db", "10.0.0.1")}}),
		namespaces: list(&corev1.NamespaceList{Items: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "default"}}}}),
		policies:   list(&networkingv1.NetworkPolicyList{}),
		rules:      &rules{applied: make(chan *policy.Model, 100)},
		node:       "n1",
		checkEvery: 10 * time.Millisecond,
		changes:    make(chan struct{}),
		filter:     func() (bool, error) { return false, nil },
	}
}

// run runs a controller until the test ends.
func (w *world) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- Run(ctx, Config{
			Node: w.node, Pods: w.pods, Namespaces: w.namespaces, Policies: w.policies, Rules: w.rules,
			Log: slog.New(slog.NewTextHandler(&w.log, nil)), CheckEvery: w.checkEvery,
			Changes: w.changes, FilterBridged: w.filter,
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// await waits for a model whose isolated addresses for ingress are these.
func (w *world) await(t *testing.T, want ...string) *policy.Model {
	t.Helper()
	for {
		select {
		case m := <-w.rules.applied:
			got := map[string]bool{}
			for addr := range m.Isolated[policy.Ingress] {
				got[addr.String()] = true
			}
			expected := map[string]bool{}
			for _, addr := range want {
				expected[addr] = true
			}
			if maps.Equal(got, expected) {
				return m
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("no model isolates %q\n%s", want, w.log.String())
		}
	}
}

func denyAll() *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "deny"},
		Spec:       networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}},
	}
}

// TestFollowsTheCluster: policies and pods that come, change and go.
func TestFollowsTheCluster(t *testing.T) {
	w := newWorld()
	w.run(t)
	w.await(t)
	w.policies.events.Add(denyAll())
	w.await(t, "10.0.0.1")
	w.pods.events.Add(pod("web", "10.0.0.2"))
	w.await(t, "10.0.0.1", "10.0.0.2")
	only := denyAll()
	only.Spec.PodSelector = metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	only.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}}}}}
	w.policies.events.Modify(only)
	m := w.await(t, "10.0.0.2")
	from := policy.Conn{Source: netip.MustParseAddr("10.0.0.1"), Destination: netip.MustParseAddr("10.0.0.2"), Proto: 6, Port: 80}
	if m.Allows(from) {
		t.Error("a namespace without the label is a peer")
	}
	w.namespaces.events.Modify(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": "a"}}})
	for m = w.await(t, "10.0.0.2"); !m.Allows(from); m = w.await(t, "10.0.0.2") {
	}
	ended := pod("web", "10.0.0.2")
	ended.Status.Phase = corev1.PodSucceeded
	w.pods.events.Modify(ended)
	w.await(t)
	w.policies.events.Delete(only)
	w.await(t)
}

// TestDeletedPodStaysIsolated: a pod of the node whose object is deleted while it runs stays isolated, and is nobody's peer,
// until another pod reports its address. One that has ended, or of another node, does not.
func TestDeletedPodStaysIsolated(t *testing.T) {
	w := newWorld()
	only := denyAll()
	only.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}}}
	w.policies.list = &networkingv1.NetworkPolicyList{Items: []networkingv1.NetworkPolicy{*only}}
	w.run(t)
	w.await(t, "10.0.0.1")
	w.pods.events.Add(pod("web", "10.0.0.2"))
	w.await(t, "10.0.0.1", "10.0.0.2")
	w.pods.events.Delete(pod("db", "10.0.0.1"))
	db, web := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	m := w.await(t, "10.0.0.1", "10.0.0.2")
	for m.Allows(policy.Conn{Source: db, Destination: web, Proto: 6, Port: 80}) { // of before
		m = w.await(t, "10.0.0.1", "10.0.0.2")
	}
	if !m.Allows(policy.Conn{Source: web, Destination: db, Proto: 6, Port: 80}) {
		t.Error("a policy has lost what it allows to the pod")
	}
	successor := pod("next", "10.0.0.1")
	successor.Namespace = "open"
	w.pods.events.Add(successor)
	w.await(t, "10.0.0.2")
	w.pods.events.Delete(successor)
	ended := pod("web", "10.0.0.2")
	ended.Status.Phase = corev1.PodFailed
	w.pods.events.Modify(ended)
	w.pods.events.Delete(ended)
	far := pod("far", "10.0.0.3")
	far.Spec.NodeName = "n2"
	w.pods.events.Add(far)
	w.pods.events.Delete(far)
	w.pods.events.Add(pod("last", "10.0.0.4"))
	w.await(t, "10.0.0.4")
}

// TestGoneIsForgotten: after a while, whether or not somebody reports the address.
func TestGoneIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gone{node: "n1"}
		g.deleted(cache.DeletedFinalStateUnknown{Obj: pod("a", "10.0.0.1")})
		other := pod("b", "10.0.0.2")
		other.UID = "new"
		g.replaced(pod("b", "10.0.0.2"), other)
		g.replaced(other, other)
		if left := g.rest(nil); len(left) != 2 || g.due() {
			t.Errorf("%+v, due %t", left, g.due())
		}
		time.Sleep(keepGone)
		if !g.due() {
			t.Error("not due")
		}
		if left := g.rest(nil); len(left) != 0 || g.due() {
			t.Errorf("%+v, due %t", left, g.due())
		}
	})
}

// TestNothingIsWrittenBeforeAllIsKnown: the rules of an earlier run stay until pods, namespaces and
// policies are known, and what fails is logged.
func TestNothingIsWrittenBeforeAllIsKnown(t *testing.T) {
	for what, late := range map[string]func(*world) *source{
		"pods":             func(w *world) *source { return w.pods },
		"namespaces":       func(w *world) *source { return w.namespaces },
		"network policies": func(w *world) *source { return w.policies },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			policies := denyAll()
			policies.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}}}}}
			w.policies.list = &networkingv1.NetworkPolicyList{Items: []networkingv1.NetworkPolicy{*policies}}
			late(w).failures = 1
			w.run(t)
			first := <-w.rules.applied
			grants, isolated := first.Isolated[policy.Ingress][netip.MustParseAddr("10.0.0.1")]
			if !isolated || len(grants) != 1 || len(first.Grants[grants[0]].Rules[0].Pods) != 1 {
				t.Errorf("the first rules: %+v", first)
			}
			if text := w.log.String(); !strings.Contains(text, "cannot list the "+what+" of the cluster") || !strings.Contains(text, "no answer") {
				t.Errorf("logged:\n%s", text)
			}
		})
	}
}

// TestChangesOfTheHostAreCheckedAtOnce: rules that another program has removed are back without a wait for the
// next check.
func TestChangesOfTheHostAreCheckedAtOnce(t *testing.T) {
	w := newWorld()
	w.policies.list = &networkingv1.NetworkPolicyList{Items: []networkingv1.NetworkPolicy{*denyAll()}}
	w.checkEvery = time.Hour
	w.run(t)
	w.await(t, "10.0.0.1")
	w.rules.mu.Lock()
	w.rules.intact = false
	w.rules.mu.Unlock()
	w.changes <- struct{}{}
	w.await(t, "10.0.0.1")
}

// awaitLogged waits for a line of the log.
func (w *world) awaitLogged(t *testing.T, text string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(w.log.String(), text); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%q is not logged:\n%s", text, w.log.String())
		}
	}
}

// TestHostIsChecked: what the rules depend on is checked again and again.
func TestHostIsChecked(t *testing.T) {
	w := newWorld()
	w.node = "n2"
	var runs atomic.Int32
	w.filter = func() (bool, error) {
		switch runs.Add(1) {
		case 2:
			return true, nil
		case 4:
			return false, errors.New("read-only")
		}
		return false, nil
	}
	w.run(t)
	w.awaitLogged(t, "did not show packets between pods of this node to the rules; it does so now")
	w.awaitLogged(t, "read-only")
	if text := w.log.String(); strings.Count(text, "no pod of the cluster is on this node") != 1 {
		t.Errorf("logged:\n%s", text)
	}
}

// TestDiffers: only changes of what policies know cause work.
func TestDiffers(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"nothing":    {func(*corev1.Pod) {}, false},
		"condition":  {func(p *corev1.Pod) { p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady}} }, false},
		"version":    {func(p *corev1.Pod) { p.ResourceVersion = "7" }, false},
		"labels":     {func(p *corev1.Pod) { p.Labels = nil }, true},
		"addresses":  {func(p *corev1.Pod) { p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: "fd00::1"}) }, true},
		"no address": {func(p *corev1.Pod) { p.Status.PodIPs = nil }, true},
		"end":        {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, true},
		"node":       {func(p *corev1.Pod) { p.Spec.NodeName = "n2" }, true},
		"ports": {func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 80}}}}
		}, true},
	} {
		now := pod("db", "10.0.0.1")
		c.change(now)
		if got := differs(pod("db", "10.0.0.1"), now); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
	labelled := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}}
	if differs(labelled, labelled.DeepCopy()) || !differs(labelled, &corev1.Namespace{}) {
		t.Error("namespaces")
	}
	changed := denyAll()
	changed.Spec.PolicyTypes = nil
	if differs(denyAll(), denyAll()) || !differs(denyAll(), changed) {
		t.Error("policies")
	}
}

// TestRulesAreWrittenAgain: after the kernel has refused them, and after another program has removed
// them.
func TestRulesAreWrittenAgain(t *testing.T) {
	w := newWorld()
	w.policies.list = &networkingv1.NetworkPolicyList{Items: []networkingv1.NetworkPolicy{*denyAll()}}
	w.rules.fail = 1
	w.run(t)
	w.await(t, "10.0.0.1")
	if text := w.log.String(); !strings.Contains(text, "the kernel refuses") {
		t.Errorf("logged:\n%s", text)
	}
	w.rules.mu.Lock()
	w.rules.intact = false
	w.rules.mu.Unlock()
	w.await(t, "10.0.0.1")
	if text := w.log.String(); !strings.Contains(text, "were missing or changed") {
		t.Errorf("logged:\n%s", text)
	}
}

// TestFaultsAreLoggedOnce: a policy that cannot be read is named once, however often rules are written.
func TestFaultsAreLoggedOnce(t *testing.T) {
	w := newWorld()
	broken := denyAll()
	broken.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{}}}}
	w.policies.list = &networkingv1.NetworkPolicyList{Items: []networkingv1.NetworkPolicy{*broken}}
	w.run(t)
	w.await(t, "10.0.0.1")
	for i := range 3 {
		name := fmt.Sprint("web", i)
		w.pods.events.Add(pod(name, "10.0.0.9"))
		w.await(t, "10.0.0.1", "10.0.0.9")
	}
	if got := strings.Count(w.log.String(), "NetworkPolicy default/deny: spec.ingress[0].from[0]"); got != 1 {
		t.Errorf("logged %d times:\n%s", got, w.log.String())
	}
}

func TestNodeNeedsAName(t *testing.T) {
	if err := Run(t.Context(), Config{}); !errors.Is(err, errs.Invalid) {
		t.Error(err)
	}
}
