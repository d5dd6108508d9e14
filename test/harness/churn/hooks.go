package churn

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// hooks: postStart runs beside the container's start, preStop before its signal, and the exit code
// is the program's.
func hooks(ctx context.Context, p *pod) error {
	err := p.create(ctx, `
terminationGracePeriodSeconds: 60
containers:
- name: main
  args: ["trap 'echo term >> /churn/order; exit 37' TERM", "echo up > /churn/up", "while :; do sleep 1; done"]
  lifecycle:
    postStart: {exec: {command: [/bin/sh, -c, "echo post >> /churn/order"]}}
    preStop: {exec: {command: [/bin/sh, -c, "echo pre >> /churn/order; sleep 1; echo pre-end >> /churn/order"]}}
`)
	if err != nil {
		return err
	}
	if err := p.awaitUp(ctx); err != nil {
		return err
	}
	if p.disruptedSince(p.made, berthAway()) { // a kubelet restarts a container whose postStart was cut off
		p.ordered["main"] = statusOf(p.seen.last(p.name), "main").RestartCount
	}
	return p.endsInOrder(ctx, "post", "pre", "pre-end", "term")
}

// endsInOrder deletes the pod, which must write these words and exit with code 37.
func (p *pod) endsInOrder(ctx context.Context, words ...string) error {
	seen, err := p.remove(ctx, -1)
	if err != nil {
		return err
	}
	got := p.lines("order")
	if p.disruptedSince(p.made, append(kubeletAway(), berthAway()...)) {
		got = firsts(got) // a hook that was cut off is run again
		if words[0] == "post" && !slices.Contains(got, "post") {
			words = words[1:] // a kubelet runs no postStart in a container whose start it has not seen succeed
		}
	}
	if !slices.Equal(got, words) {
		return fmt.Errorf("it went in the order %q, want %q", got, words)
	}
	return p.checkCodes(seen, map[string]int32{"main": 37})
}

// firsts keeps the first occurrence of each word.
func firsts(words []string) []string {
	var all []string
	for _, word := range words {
		if !slices.Contains(all, word) {
			all = append(all, word)
		}
	}
	return all
}

// httpHooks: hooks that the kubelet calls on a server in the pod.
func httpHooks(ctx context.Context, p *pod) error {
	err := p.create(ctx, `
terminationGracePeriodSeconds: 60
containers:
- name: main
  args:
  - "trap 'echo term >> /churn/order; exit 37' TERM"
  - "mkdir -p /tmp/www/cgi-bin"
  - "printf '#!/bin/sh\\necho pre >> /churn/order\\nprintf \"Content-type: text/plain\\\\r\\\\n\\\\r\\\\nok\"\\n' > /tmp/www/cgi-bin/pre"
  - "chmod +x /tmp/www/cgi-bin/pre; httpd -f -p 8080 -h /tmp/www &"
  - "while :; do sleep 1; done"
  readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, timeoutSeconds: 10}
  lifecycle:
    postStart: {sleep: {seconds: 1}}
    preStop: {httpGet: {path: /cgi-bin/pre, port: 8080}}
`)
	if err != nil {
		return err
	}
	if err := p.awaitReady(ctx); err != nil {
		return err
	}
	return p.endsInOrder(ctx, "pre", "term")
}

// initAndSidecar: init containers run one after the other, a sidecar from its turn until all others
// have exited.
func initAndSidecar(ctx context.Context, p *pod) error {
	err := p.create(ctx, `
restartPolicy: Never
terminationGracePeriodSeconds: 30
initContainers:
- {name: first, args: ["echo first >> /churn/order"]}
- name: side
  restartPolicy: Always
  args: ["trap 'echo side-end >> /churn/order; exit 0' TERM", "echo side >> /churn/order; touch /tmp/up", "while :; do sleep 1; done"]
  startupProbe: {exec: {command: [/bin/sh, -c, "test -e /tmp/up"]}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 60}
- {name: second, args: ["echo second >> /churn/order"]}
containers:
- {name: main, args: ["echo main >> /churn/order; sleep 3; echo main-end >> /churn/order"]}
`)
	if err != nil {
		return err
	}
	if _, err := p.awaitEnd(ctx, corev1.PodSucceeded, map[string]int32{"first": 0, "side": 0, "second": 0, "main": 0}); err != nil {
		return err
	}
	return p.awaitLines(ctx, "order", "first", "side", "second", "main", "main-end", "side-end")
}

// sidecarRestarts: a sidecar that exits restarts, and nothing else does.
func sidecarRestarts(ctx context.Context, p *pod) error {
	p.ordered["side"] = 1
	err := p.create(ctx, `
terminationGracePeriodSeconds: 10
initContainers:
- name: side
  restartPolicy: Always
  args: ["trap 'exit 0' TERM", "[ $(grep -c side /churn/starts) = 2 ] || { sleep 3; exit 4; }", "while :; do sleep 1; done"]
containers:
- {name: main, args: ["trap 'exit 0' TERM", "while :; do sleep 1; done"]}
`)
	if err != nil {
		return err
	}
	seen, err := p.await(ctx, "the sidecar's restart", func(seen *corev1.Pod) bool {
		return p.restarted(seen, "side") && ready(seen)
	})
	if err != nil {
		return err
	}
	return p.checkLast(seen, "side", 4)
}
