package controller

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berthrun/berth/internal/network/policy"
)

// keepGone is how long a pod of the node stays isolated after its object is gone, unless another pod reports its
// addresses before. It is more than a kubelet takes for a pod with the usual grace periods.
const keepGone = 10 * time.Minute

// gone are pods of the node whose objects were deleted while they had not ended: by force, or by a kubelet that does not
// report the end first. Their processes may run for as long as the kubelet needs to stop them, and an account that may
// delete pods must not open a pod to which policies apply. They are lost with the controller.
type gone struct {
	node string

	mu   sync.Mutex
	pods map[string]goneReport // by UID
}

type goneReport struct {
	pod   policy.Pod
	until time.Time
}

// deleted keeps a pod whose object is gone.
func (g *gone) deleted(object any) {
	if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = last.Obj
	}
	p, ok := object.(*corev1.Pod)
	if !ok {
		return // of another kind
	}
	pod, ok := policy.PodOf(p)
	if !ok || pod.Node != g.node {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pods == nil {
		g.pods = map[string]goneReport{}
	}
	g.pods[pod.Namespace+"/"+pod.Name+"/"+pod.UID] = goneReport{pod, time.Now().Add(keepGone)}
}

// replaced keeps the former pod if an object is another pod now: the list after a lost watch has no deletions.
func (g *gone) replaced(old, now any) {
	before, ok := old.(*corev1.Pod)
	if after, same := now.(*corev1.Pod); ok && same && before.UID != after.UID {
		g.deleted(before)
	}
}

// rest forgets pods after keepGone, and addresses that other pods report, for good: the next one that goes has them
// alone. It returns what is left.
func (g *gone) rest(pods []policy.Pod) []policy.Pod {
	reported := map[netip.Addr]bool{}
	for _, p := range pods {
		for _, a := range p.Addrs {
			reported[a] = true
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var left []policy.Pod
	for key, r := range g.pods {
		r.pod.Addrs = slices.DeleteFunc(slices.Clone(r.pod.Addrs), func(a netip.Addr) bool { return reported[a] })
		if len(r.pod.Addrs) == 0 || !time.Now().Before(r.until) {
			delete(g.pods, key)
			continue
		}
		g.pods[key] = r
		left = append(left, r.pod)
	}
	return left
}

// due reports whether rest would forget a pod because of its age.
func (g *gone) due() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.pods {
		if !time.Now().Before(r.until) {
			return true
		}
	}
	return false
}
