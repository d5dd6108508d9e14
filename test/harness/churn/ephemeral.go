package churn

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/berthrun/berth/test/harness"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ephemeral: a container that is added later sees its target's processes and files, and nothing of
// the pod restarts.
func ephemeral(ctx context.Context, p *pod) error {
	seconds := 100_000 + p.number
	err := p.create(ctx, fmt.Sprintf(`
terminationGracePeriodSeconds: 0
containers:
- {name: main, args: ["echo mine > /tmp/mine; exec sleep %d"]}
- {name: other, args: ["exec sleep 100000"]}
`, seconds))
	if err != nil {
		return err
	}
	if err := p.awaitReady(ctx); err != nil {
		return err
	}
	for _, c := range []struct{ name, target, script string }{
		{"looks", "main", "tr '\\0' ' ' < /proc/1/cmdline; cat /proc/1/root/tmp/mine; exit 7"},
		{"alone", "", "tr '\\0' ' ' < /proc/1/cmdline; exit 8"},
	} {
		body := fmt.Sprintf(`{"spec": {"ephemeralContainers": [{"name": %q, "image": %q, "imagePullPolicy": "Never",
 "targetContainerName": %q, "command": ["/bin/sh", "-c", %q]}]}}`, c.name, harness.Busybox, c.target, c.script)
		if err := p.patch(ctx, body, "ephemeralcontainers"); err != nil {
			return fmt.Errorf("cannot add %s: %w", c.name, err)
		}
	}
	seen, err := p.await(ctx, "the ephemeral containers to end", func(seen *corev1.Pod) bool {
		return ended(seen, "looks") && ended(seen, "alone")
	})
	if err != nil {
		if seen != nil && (p.neverStarted(seen, "looks") || p.neverStarted(seen, "alone")) {
			return nil
		}
		return err
	}
	if err := p.checkCodes(seen, map[string]int32{"looks": 7, "alone": 8}); err != nil {
		return err
	}
	if err := p.logIs(ctx, "looks", fmt.Sprintf("sleep %d mine\n", seconds)); err != nil {
		return err
	}
	return p.logBegins(ctx, "alone", "/bin/sh -c")
}

// neverStarted: a kubelet that ends between the creation and the start of an ephemeral container
// never starts it, because it only checks whether there is one.
func (p *pod) neverStarted(seen *corev1.Pod, name string) bool {
	status := statusOf(seen, name)
	return status != nil && status.ContainerID != "" && status.State.Waiting != nil && p.disruptedSince(p.made, kubeletAway())
}

func ended(seen *corev1.Pod, name string) bool {
	status := statusOf(seen, name)
	return status != nil && status.State.Terminated != nil
}

// logIs waits until a container's log, as the API gives it, is text.
func (p *pod) logIs(ctx context.Context, container, text string) error {
	return p.poll(ctx, "the log of "+container, func(ctx context.Context) error {
		got, err := p.apiLog(ctx, container)
		if err == nil && got != text {
			err = fmt.Errorf("it is %q, want %q", got, text)
		}
		return err
	})
}

func (p *pod) logBegins(ctx context.Context, container, text string) error {
	return p.poll(ctx, "the log of "+container, func(ctx context.Context) error {
		got, err := p.apiLog(ctx, container)
		if err == nil && !strings.HasPrefix(got, text) {
			err = fmt.Errorf("it is %q, want %q first", got, text)
		}
		return err
	})
}

// sharedProcesses: containers of one PID namespace see each other, over restarts of one of them.
func sharedProcesses(ctx context.Context, p *pod) error {
	p.ordered["main"] = 1
	err := p.create(ctx, fmt.Sprintf(`
shareProcessNamespace: true
terminationGracePeriodSeconds: 0
containers:
- {name: main, args: ["[ $(grep -c main /churn/starts) = 2 ] || exit 9", "exec sleep %d"]}
- {name: other, args: ["exec sleep 100000"]}
`, 200_000+p.number))
	if err != nil {
		return err
	}
	// Before it ends, main's first try may have been reported as ready.
	_, err = p.await(ctx, "the restart", func(seen *corev1.Pod) bool { return p.restarted(seen, "main") && ready(seen) })
	if err != nil {
		return err
	}
	status, err := p.container(ctx, "other")
	if err != nil {
		return err
	}
	return p.execSync(ctx, status.Status.Id, fmt.Sprintf("ps | grep -q 'sleep %d'", 200_000+p.number))
}

// execSync runs a script in a container through the runtime, and requires success. It retries while
// the runtime is down.
func (p *pod) execSync(ctx context.Context, id, script string) error {
	return p.poll(ctx, "a command in the container", func(ctx context.Context) error {
		answer, err := p.b.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"/bin/sh", "-c", script}, Timeout: 20})
		if err == nil && answer.ExitCode != 0 {
			err = errors.New(string(answer.Stderr))
		}
		return err
	})
}
