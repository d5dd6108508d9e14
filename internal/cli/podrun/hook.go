package podrun

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/podspec"
)

// leastGrace is what a container has left after its preStop hook took all of its grace.
const leastGrace = 2 * time.Second

// postStart runs the hook of a container that has just started; it ends with the
// container. One that fails ends the container, as under a kubelet.
func (k *keeper) postStart(ctx context.Context, a *attempt) error {
	if a.spec.Lifecycle == nil || a.spec.Lifecycle.PostStart == nil {
		return nil
	}
	hook, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		if k.await(hook, a) == nil {
			cancel()
		}
	}()
	err := k.runHook(hook, a, a.spec.Lifecycle.PostStart)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil || a.hasEnded() {
		return nil
	}
	k.say("%s: its postStart hook failed, the container is stopped: %v", a.spec.Name, err)
	a.failedProbe.Store(true)
	return k.terminate(ctx, a, k.grace(), nil)
}

// terminate runs the preStop hook, waits for the container's turn, and stops it with
// what is left of its grace.
func (k *keeper) terminate(ctx context.Context, a *attempt, grace time.Duration, turn func(ctx context.Context)) error {
	deadline := time.Now().Add(grace)
	patience, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if l := a.spec.Lifecycle; grace > 0 && l != nil && l.PreStop != nil {
		if err := k.runHook(patience, a, l.PreStop); err != nil && ctx.Err() == nil {
			k.say("%s: its preStop hook failed: %v", a.spec.Name, err)
		}
	}
	if turn != nil {
		turn(patience)
	}
	if grace > 0 {
		grace = max(time.Until(deadline), min(grace, leastGrace))
	}
	return k.askToStop(ctx, a, grace)
}

// runHook runs a handler once.
func (k *keeper) runHook(ctx context.Context, a *attempt, h *corev1.LifecycleHandler) error {
	switch {
	case h.Exec != nil:
		resp, err := k.Conn.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: a.id, Cmd: h.Exec.Command})
		if err != nil {
			return err
		}
		if resp.ExitCode != 0 {
			return fmt.Errorf("exit code %d: %s", resp.ExitCode, strings.TrimSpace(string(append(resp.Stdout, resp.Stderr...))))
		}
		return nil
	case h.HTTPGet != nil:
		return k.hookHTTP(ctx, a, h.HTTPGet)
	case h.Sleep != nil:
		return sleep(ctx, time.Duration(h.Sleep.Seconds)*time.Second)
	}
	return errors.New("no hook can have a tcpSocket handler")
}

// hookHTTP makes the request; any answer will do. A server that speaks HTTP where HTTPS
// was asked for is asked again.
func (k *keeper) hookHTTP(ctx context.Context, a *attempt, get *corev1.HTTPGetAction) error {
	action := *get
	if action.Port == intstr.FromString("") {
		action.Port = intstr.FromInt32(80)
	}
	resp, err := k.doHTTP(ctx, a, &action, "berth-lifecycle")
	if err != nil && action.Scheme == corev1.URISchemeHTTPS && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		action.Scheme = corev1.URISchemeHTTP
		resp, err = k.doHTTP(ctx, a, &action, "berth-lifecycle")
	}
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// maxRedirects is how far a probe is sent from one path to another.
const maxRedirects = 10

// doHTTP makes the request of a probe or a hook. Certificates are not checked, and a
// redirect is followed on the same host only, as by a kubelet.
func (k *keeper) doHTTP(ctx context.Context, a *attempt, get *corev1.HTTPGetAction, agent string) (*http.Response, error) {
	port, err := podspec.Port(a.spec, get.Port)
	if err != nil {
		return nil, err
	}
	path, err := url.Parse(get.Path)
	if err != nil {
		return nil, fmt.Errorf("cannot use path %q: %w", get.Path, err)
	}
	u := (&url.URL{Scheme: strings.ToLower(string(get.Scheme)), Host: k.address(get.Host, port), Path: "/"}).ResolveReference(path)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("cannot make the request: %w", err)
	}
	req.Header.Set("User-Agent", agent)
	req.Header.Set("Accept", "*/*")
	for _, h := range get.HTTPHeaders {
		if strings.EqualFold(h.Name, "Host") {
			req.Host = h.Value
			continue
		}
		req.Header.Add(h.Name, h.Value)
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		Proxy:             nil,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
	}
	defer transport.CloseIdleConnections()
	return (&http.Client{
		Transport: transport,
		CheckRedirect: func(next *http.Request, before []*http.Request) error {
			if next.URL.Hostname() != before[0].URL.Hostname() {
				return http.ErrUseLastResponse
			}
			if len(before) >= maxRedirects {
				return fmt.Errorf("there are more than %d redirects", maxRedirects)
			}
			return nil
		},
	}).Do(req)
}

// grace is what the pod's containers have to end by themselves.
func (k *keeper) grace() time.Duration {
	if k.evicted.Load() {
		return time.Second
	}
	return time.Duration(*k.pod.Spec.TerminationGracePeriodSeconds) * time.Second
}
