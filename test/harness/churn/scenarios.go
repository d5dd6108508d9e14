package churn

import "context"

// scenario is one pod's life and what is to come of it.
type scenario struct {
	// name of it, without digits and of a label's form.
	name string
	// play makes the pod and checks it; what it leaves is deleted.
	play func(ctx context.Context, p *pod) error
}

func scenarios() []scenario {
	return []scenario{
		{"http-probes", func(ctx context.Context, p *pod) error { return probes(ctx, p, "http") }},
		{"tcp-probes", func(ctx context.Context, p *pod) error { return probes(ctx, p, "tcp") }},
		{"exec-probes", func(ctx context.Context, p *pod) error { return probes(ctx, p, "exec") }},
		{"grpc-probes", func(ctx context.Context, p *pod) error { return probes(ctx, p, "grpc") }},
		{"http-sick", func(ctx context.Context, p *pod) error { return sick(ctx, p, "http") }},
		{"tcp-sick", func(ctx context.Context, p *pod) error { return sick(ctx, p, "tcp") }},
		{"exec-sick", func(ctx context.Context, p *pod) error { return sick(ctx, p, "exec") }},
		{"grpc-sick", func(ctx context.Context, p *pod) error { return sick(ctx, p, "grpc") }},
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
