package podyaml

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/document"
	"github.com/berthrun/berth/internal/cli/podyaml/podspec"
)

// validateLifecycle: a handler of kind tcpSocket is taken, and fails when it runs, as
// under a kubelet.
func (b *Bundle) validateLifecycle(f *document.Faults, field string, c *corev1.Container) {
	if c.Lifecycle == nil {
		return
	}
	field += ".lifecycle"
	if strings.HasPrefix(field, "spec.initContainers") && !podspec.IsSidecar(c) {
		f.Add(field, "an init container that is not a sidecar has no lifecycle")
	}
	for name, h := range map[string]*corev1.LifecycleHandler{"postStart": c.Lifecycle.PostStart, "preStop": c.Lifecycle.PreStop} {
		if h == nil {
			continue
		}
		at, actions := field+"."+name, 0
		if h.Exec != nil {
			actions++
			if len(h.Exec.Command) == 0 {
				f.Add(at+".exec.command", "it is empty")
			}
		}
		if h.HTTPGet != nil {
			actions++
			validateHTTP(f, at+".httpGet", h.HTTPGet)
			if h.HTTPGet.Port != intstr.FromString("") {
				checkPort(f, at, h.HTTPGet.Port, c)
			}
		}
		if h.Sleep != nil {
			actions++
			if h.Sleep.Seconds < 0 || h.Sleep.Seconds > *b.Pod.Spec.TerminationGracePeriodSeconds {
				f.Add(at+".sleep.seconds", "%d is not between 0 and terminationGracePeriodSeconds", h.Sleep.Seconds)
			}
		}
		if h.TCPSocket != nil {
			actions++
		}
		if actions != 1 {
			f.Add(at, "a handler has one of exec, httpGet, sleep, tcpSocket; this has %d", actions)
		}
	}
	if s := c.Lifecycle.StopSignal; s != nil {
		if _, known := runtimeapi.Signal_value["SIGNAL_"+string(*s)]; !known || *s == "RUNTIME_DEFAULT" {
			f.Add(field+".stopSignal", "%q is not a signal", *s)
		}
	}
}

func validateHTTP(f *document.Faults, field string, get *corev1.HTTPGetAction) {
	if get.Scheme != corev1.URISchemeHTTP && get.Scheme != corev1.URISchemeHTTPS {
		f.Add(field+".scheme", "%q is neither HTTP nor HTTPS", get.Scheme)
	}
	i := slices.IndexFunc(get.HTTPHeaders, func(h corev1.HTTPHeader) bool {
		return h.Name == "" || strings.ContainsAny(h.Name+h.Value, "\r\n")
	})
	if i >= 0 {
		f.Add(fmt.Sprintf("%s.httpHeaders[%d]", field, i), "it is not a header")
	}
}

func checkPort(f *document.Faults, field string, port intstr.IntOrString, c *corev1.Container) {
	if _, err := podspec.Port(c, port); err != nil {
		f.Add(field, "%v", err)
	}
}

func validateProbe(f *document.Faults, field, name string, p *corev1.Probe, c *corev1.Container) {
	actions := 0
	var port *intstr.IntOrString
	if p.Exec != nil {
		actions++
		if len(p.Exec.Command) == 0 {
			f.Add(field+".exec.command", "it is empty")
		}
	}
	if p.HTTPGet != nil {
		actions++
		port = &p.HTTPGet.Port
		validateHTTP(f, field+".httpGet", p.HTTPGet)
	}
	if p.TCPSocket != nil {
		actions++
		port = &p.TCPSocket.Port
	}
	if p.GRPC != nil {
		actions++
		port = new(intstr.FromInt32(p.GRPC.Port))
	}
	if actions != 1 {
		f.Add(field, "a probe has one of exec, httpGet, tcpSocket, grpc; this has %d", actions)
	}
	if port != nil {
		checkPort(f, field, *port, c)
	}
	if name != "readinessProbe" && p.SuccessThreshold != 1 {
		f.Add(field+".successThreshold", "it must be 1")
	}
	if p.InitialDelaySeconds < 0 || p.PeriodSeconds < 0 || p.TimeoutSeconds < 0 || p.FailureThreshold < 0 || p.SuccessThreshold < 0 {
		f.Add(field, "times and thresholds are not negative")
	}
}
