package churn

import (
	"context"

	"github.com/berthrun/berth/internal/engine/docker/translate"
)

// scenario is one pod's life and its expected result.
type scenario struct {
	// name is valid as a label and has no digits.
	name string
	// play creates the pod and checks it. The run deletes what it leaves.
	play func(ctx context.Context, p *pod) error
	// request is what the engine must honour, a constant of package translate; "" for none.
	request string
}

func scenarios() []scenario {
	return []scenario{
		{name: "http-probes", play: func(ctx context.Context, p *pod) error { return probes(ctx, p, "http") }},
		{name: "tcp-probes", play: func(ctx context.Context, p *pod) error { return probes(ctx, p, "tcp") }},
		{name: "exec-probes", play: func(ctx context.Context, p *pod) error { return probes(ctx, p, "exec") }},
		{name: "grpc-probes", play: func(ctx context.Context, p *pod) error { return probes(ctx, p, "grpc") }},
		{name: "http-sick", play: func(ctx context.Context, p *pod) error { return failingLiveness(ctx, p, "http") }},
		{name: "tcp-sick", play: func(ctx context.Context, p *pod) error { return failingLiveness(ctx, p, "tcp") }},
		{name: "exec-sick", play: func(ctx context.Context, p *pod) error { return failingLiveness(ctx, p, "exec") }},
		{name: "grpc-sick", play: func(ctx context.Context, p *pod) error { return failingLiveness(ctx, p, "grpc") }},
		{name: "hooks", play: hooks},
		{name: "http-hooks", play: httpHooks},
		{name: "init-and-sidecar", play: initAndSidecar},
		{name: "sidecar-restarts", play: sidecarRestarts},
		{name: "ephemeral", play: ephemeral},
		{name: "resize", play: resize},
		{name: "resize-restarts", play: resizeRestarts},
		{name: "rotation", play: rotation},
		{name: "graceful", play: graceful},
		{name: "stubborn", play: stubborn},
		{name: "succeeds", play: succeeds},
		{name: "fails", play: fails},
		{name: "second-try", play: secondTry},
		{name: "out-of-memory", play: outOfMemory},
		{name: "deadline", play: deadline},
		{name: "volumes", play: volumes},
		{name: "host-port", play: hostPort},
		{name: "user-namespace", play: userNamespace, request: translate.UserNamespaces},
		{name: "shared-processes", play: sharedProcesses},
		{name: "deleted-early", play: deletedEarly},
	}
}
