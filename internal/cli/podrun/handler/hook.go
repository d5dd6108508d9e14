package handler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Hook runs a handler once.
func (t *Target) Hook(ctx context.Context, h *corev1.LifecycleHandler) error {
	switch {
	case h.Exec != nil:
		resp, err := t.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: t.ContainerID, Cmd: h.Exec.Command})
		if err != nil {
			return err
		}
		if resp.ExitCode != 0 {
			return fmt.Errorf("exit code %d: %s", resp.ExitCode, strings.TrimSpace(string(append(resp.Stdout, resp.Stderr...))))
		}
		return nil
	case h.HTTPGet != nil:
		return t.hookHTTP(ctx, h.HTTPGet)
	case h.Sleep != nil:
		select {
		case <-time.After(time.Duration(h.Sleep.Seconds) * time.Second):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return errors.New("a hook cannot have a tcpSocket handler")
}

// hookHTTP makes the request; any answer is a success. If a server
// answers HTTP to HTTPS, the request is repeated with HTTP.
func (t *Target) hookHTTP(ctx context.Context, get *corev1.HTTPGetAction) error {
	action := *get
	if action.Port == intstr.FromString("") {
		action.Port = intstr.FromInt32(80)
	}
	resp, err := t.doHTTP(ctx, &action, "berth-lifecycle")
	if err != nil && action.Scheme == corev1.URISchemeHTTPS && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		action.Scheme = corev1.URISchemeHTTP
		resp, err = t.doHTTP(ctx, &action, "berth-lifecycle")
	}
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
