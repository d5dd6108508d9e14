package churn

import "context"

// scenario is one pod's life and its expected result.
type scenario struct {
	// name is valid as a label and has no digits.
	name string
	// play creates the pod and checks it. The run deletes what it leaves.
	play func(ctx context.Context, p *pod) error
}

func scenarios() []scenario {
	return []scenario{
		{"http-probes", func(ctx context.Context, p *pod) error { return probes(ctx, p, "http") }},
		{"tcp-probes", func(ctx context.Context, p *pod) error { return probes(ctx, p, "tcp") }},
		{"exec-probes", func(ctx context.Context, p *pod) error { return probes(ctx, p, "exec") }},
		{"grpc-probes", func(ctx context.Context, p *pod) error { return probes(ctx, p, "grpc") }},
		{"http-sick", func(ctx context.Context, p *pod) error { return failingLiveness(ctx, p, "http") }},
		{"tcp-sick", func(ctx context.Context, p *pod) error { return failingLiveness(ctx, p, "tcp") }},
		{"exec-sick", func(ctx context.Context, p *pod) error { return failingLiveness(ctx, p, "exec") }},
		{"grpc-sick", func(ctx context.Context, p *pod) error { return failingLiveness(ctx, p, "grpc") }},
		{"hooks", hooks},
		{"http-hooks", httpHooks},
		{"init-and-sidecar", initAndSidecar},
		{"sidecar-restarts", sidecarRestarts},
		{"ephemeral", ephemeral},
		{"resize", resize},
		{"resize-restarts", resizeRestarts},
		{"rotation", rotation},
		{"graceful", graceful},
		{"stubborn", stubborn},
		{"succeeds", succeeds},
		{"fails", fails},
		{"second-try", secondTry},
		{"out-of-memory", outOfMemory},
		{"deadline", deadline},
		{"volumes", volumes},
		{"host-port", hostPort},
		{"user-namespace", userNamespace},
		{"shared-processes", sharedProcesses},
		{"deleted-early", deletedEarly},
	}
}
