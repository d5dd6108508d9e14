// Package handler runs the handlers of probes and lifecycle hooks, as a kubelet does.
package handler

import (
	"cmp"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Target is a container whose probes and hooks run.
type Target struct {
	Runtime     runtimeapi.RuntimeServiceClient
	ContainerID string
	Container   *corev1.Container
	// PodIP is where probes and hooks reach the pod: loopback on the host's network.
	PodIP string
}

// address is of the pod unless the handler names a host.
func (t *Target) address(host string, port int32) string {
	return net.JoinHostPort(cmp.Or(host, t.PodIP), strconv.Itoa(int(port)))
}
