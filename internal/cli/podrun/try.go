package podrun

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/podspec"
	"github.com/berthrun/berth/internal/errs"
)

func (k *keeper) tryExec(ctx context.Context, a *attempt, p *corev1.Probe) error {
	resp, err := k.Conn.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{
		ContainerId: a.id, Cmd: p.Exec.Command, Timeout: int64(p.TimeoutSeconds),
	})
	if errors.Is(err, errs.Unavailable) || errors.Is(err, errs.State) || errors.Is(err, errs.NotFound) {
		return fmt.Errorf("%w: %w", errNotProbed, err)
	}
	if err != nil {
		return err
	}
	if resp.ExitCode != 0 {
		return fmt.Errorf("exit code %d: %s", resp.ExitCode, strings.TrimSpace(string(append(resp.Stdout, resp.Stderr...))))
	}
	return nil
}

// tryHTTP counts any answer from 200 to 399 as success.
func (k *keeper) tryHTTP(ctx context.Context, a *attempt, get *corev1.HTTPGetAction) error {
	resp, err := k.doHTTP(ctx, a, get, "berth-probe")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode >= 400 {
		return fmt.Errorf("%s answered %s", resp.Request.URL, resp.Status)
	}
	return nil
}

func (k *keeper) tryTCP(ctx context.Context, a *attempt, socket *corev1.TCPSocketAction) error {
	port, err := podspec.Port(a.spec, socket.Port)
	if err != nil {
		return err
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", k.address(socket.Host, port))
	if err != nil {
		return err
	}
	return conn.Close()
}

func (k *keeper) tryGRPC(ctx context.Context, action *corev1.GRPCAction) error {
	conn, err := grpc.NewClient("passthrough:///"+k.address("", action.Port), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("cannot connect: %w", err)
	}
	defer conn.Close()
	req := &grpc_health_v1.HealthCheckRequest{}
	if action.Service != nil {
		req.Service = *action.Service
	}
	resp, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, req)
	if err != nil {
		return err
	}
	if resp.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		return fmt.Errorf("the service is %s", resp.Status)
	}
	return nil
}

// address is of the pod unless the probe names a host. A pod on the host's network
// is probed over loopback.
func (k *keeper) address(host string, port int32) string {
	switch {
	case host != "":
	case k.pod.Spec.HostNetwork:
		host = "127.0.0.1"
	case len(k.facts.PodIPs) > 0:
		host = k.facts.PodIPs[0]
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
