package handler

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/podspec"
	"github.com/berthrun/berth/internal/errs"
)

// ErrNotProbed says that the runtime could not run the probe. It says nothing about the
// container.
var ErrNotProbed = errors.New("the probe did not run")

// Probe runs a probe once. The time of an exec is kept by the runtime, which then
// says so.
func (t *Target) Probe(ctx context.Context, p *corev1.Probe) error {
	if p.Exec != nil {
		return t.tryExec(ctx, p)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(p.TimeoutSeconds)*time.Second)
	defer cancel()
	switch {
	case p.HTTPGet != nil:
		return t.tryHTTP(ctx, p.HTTPGet)
	case p.TCPSocket != nil:
		return t.tryTCP(ctx, p.TCPSocket)
	case p.GRPC != nil:
		return t.tryGRPC(ctx, p.GRPC)
	}
	return fmt.Errorf("the probe has no action")
}

func (t *Target) tryExec(ctx context.Context, p *corev1.Probe) error {
	resp, err := t.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{
		ContainerId: t.ContainerID, Cmd: p.Exec.Command, Timeout: int64(p.TimeoutSeconds),
	})
	if errors.Is(err, errs.Unavailable) || errors.Is(err, errs.State) || errors.Is(err, errs.NotFound) {
		return fmt.Errorf("%w: %w", ErrNotProbed, err)
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
func (t *Target) tryHTTP(ctx context.Context, get *corev1.HTTPGetAction) error {
	resp, err := t.doHTTP(ctx, get, "berth-probe")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode >= 400 {
		return fmt.Errorf("%s answered %s", resp.Request.URL, resp.Status)
	}
	return nil
}

func (t *Target) tryTCP(ctx context.Context, socket *corev1.TCPSocketAction) error {
	port, err := podspec.Port(t.Container, socket.Port)
	if err != nil {
		return err
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", t.address(socket.Host, port))
	if err != nil {
		return err
	}
	return conn.Close()
}

func (t *Target) tryGRPC(ctx context.Context, action *corev1.GRPCAction) error {
	conn, err := grpc.NewClient("passthrough:///"+t.address("", action.Port), grpc.WithTransportCredentials(insecure.NewCredentials()))
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
