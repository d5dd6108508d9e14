package network

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestDNSBehindAStub: a pod without dnsConfig has the host's /etc/resolv.conf, unless that names a resolver that the pod
// does not reach.
func TestDNSBehindAStub(t *testing.T) {
	host := &runtimeapi.DNSConfig{Servers: []string{"192.0.2.53"}}
	for _, c := range []struct {
		behindStub, hostNetwork bool
		want                    *runtimeapi.DNSConfig
	}{{false, false, nil}, {true, false, host}, {true, true, nil}} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst, HostNetwork: c.hostNetwork}}
		if got := DNS(pod, host, c.behindStub); got != c.want {
			t.Errorf("%+v: got %v", c, got)
		}
	}
}
