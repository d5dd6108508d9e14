package churn

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// graceful: a program that needs time to exit gets it, and its code is reported.
func graceful(ctx context.Context, p *pod) error {
	err := p.create(ctx, `
terminationGracePeriodSeconds: 60
containers:
- {name: main, args: ["trap 'sleep 3; echo term >> /churn/order; exit 37' TERM", "echo up > /churn/up", "while :; do sleep 1; done"]}
`)
	if err != nil {
		return err
	}
	if err := p.awaitUp(ctx); err != nil {
		return err
	}
	return p.endsInOrder(ctx, "term")
}

// stubborn: a program that does not exit is killed after the grace period.
func stubborn(ctx context.Context, p *pod) error {
	err := p.create(ctx, `
terminationGracePeriodSeconds: 3
containers:
- {name: main, args: ["trap 'echo term >> /churn/order' TERM", "echo up > /churn/up", "while :; do sleep 1; done"]}
`)
	if err != nil {
		return err
	}
	if err := p.awaitUp(ctx); err != nil {
		return err
	}
	began := time.Now()
	seen, err := p.remove(ctx, -1)
	if err != nil {
		return err
	}
	if took := time.Since(began); took < 2*time.Second {
		return fmt.Errorf("it was gone after %v, it has 3 s", took)
	}
	return p.checkCodes(seen, map[string]int32{"main": 137})
}

// succeeds: a pod that completes, as those of jobs do.
func succeeds(ctx context.Context, p *pod) error {
	err := p.create(ctx, `
restartPolicy: Never
containers:
- {name: main, args: ["echo done; echo -n message > /dev/termination-log; exit 0"]}
- {name: other, args: ["sleep 2; exit 0"]}
`)
	if err != nil {
		return err
	}
	seen, err := p.awaitEnd(ctx, corev1.PodSucceeded, map[string]int32{"main": 0, "other": 0})
	if err != nil {
		return err
	}
	if said := statusOf(seen, "main").State.Terminated.Message; said != "message" {
		return fmt.Errorf("its last message is %q", said)
	}
	return p.logIs(ctx, "main", "done\n")
}

// fails: a pod that exits with a code of its own.
func fails(ctx context.Context, p *pod) error {
	code := 1 + p.rng.Int32N(120)
	err := p.create(ctx, fmt.Sprintf(`
restartPolicy: Never
containers:
- {name: main, args: ["echo last words; exit %d"], terminationMessagePolicy: FallbackToLogsOnError}
- {name: other, args: ["exit 0"]}
`, code))
	if err != nil {
		return err
	}
	seen, err := p.awaitEnd(ctx, corev1.PodFailed, map[string]int32{"main": code, "other": 0})
	if err != nil {
		return err
	}
	if said := statusOf(seen, "main").State.Terminated.Message; strings.TrimSpace(said) != "last words" {
		return fmt.Errorf("its last message is %q", said)
	}
	return nil
}

// secondTry: a pod that fails is retried, and the first try's result is reported.
func secondTry(ctx context.Context, p *pod) error {
	p.ordered["main"] = 1
	err := p.create(ctx, `
restartPolicy: OnFailure
containers:
- {name: main, args: ["[ $(grep -c main /churn/starts) = 2 ] && exit 0", "exit 21"]}
`)
	if err != nil {
		return err
	}
	seen, err := p.awaitEnd(ctx, corev1.PodSucceeded, map[string]int32{"main": 0})
	if err != nil {
		return err
	}
	return p.checkLast(seen, "main", 21)
}

// outOfMemory: a program that uses more than its limit is killed, with the reason in its status.
func outOfMemory(ctx context.Context, p *pod) error {
	err := p.create(ctx, `
restartPolicy: Never
containers:
- {name: main, args: ["exec tail /dev/zero"], resources: {limits: {memory: 24Mi}}}
`)
	if err != nil {
		return err
	}
	seen, err := p.awaitEnd(ctx, corev1.PodFailed, map[string]int32{"main": 137})
	if err != nil {
		return err
	}
	if reason := statusOf(seen, "main").State.Terminated.Reason; reason != "OOMKilled" {
		return fmt.Errorf("the reason is %s", reason)
	}
	return nil
}

// deadline: a pod is stopped at its deadline.
func deadline(ctx context.Context, p *pod) error {
	err := p.create(ctx, `
restartPolicy: OnFailure
activeDeadlineSeconds: 8
terminationGracePeriodSeconds: 10
containers:
- {name: main, args: ["trap 'exit 3' TERM", "while :; do sleep 1; done"]}
`)
	if err != nil {
		return err
	}
	seen, err := p.await(ctx, "the pod to fail", func(seen *corev1.Pod) bool { return seen.Status.Phase == corev1.PodFailed })
	if err != nil {
		return err
	}
	if seen.Status.Reason != "DeadlineExceeded" {
		return fmt.Errorf("the reason is %s", seen.Status.Reason)
	}
	_, err = p.await(ctx, "its container to end", func(seen *corev1.Pod) bool { return ended(seen, "main") })
	return err
}

// deletedEarly: a pod that is deleted at any moment of its start is gone, by force or not.
func deletedEarly(ctx context.Context, p *pod) error {
	err := p.create(ctx, `
terminationGracePeriodSeconds: 5
initContainers:
- {name: first, args: ["sleep 1"]}
containers:
- {name: main, args: ["trap 'exit 0' TERM", "while :; do sleep 1; done"]}
- {name: other, args: ["trap 'exit 0' TERM", "while :; do sleep 1; done"]}
`)
	if err != nil {
		return err
	}
	pause(ctx, randomUpTo(p.rng, 5*time.Second))
	_, err = p.remove(ctx, p.rng.Int64N(4)-1)
	return err
}
