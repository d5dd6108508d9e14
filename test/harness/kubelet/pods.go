package kubelet

import (
	"fmt"
	"time"

	"github.com/berthrun/berth/test/harness"
)

// Manifests returns pods by name, with every kind of probe that an ordinary pod has; period is the
// probes' period.
func Manifests(count int, period time.Duration) map[string]string {
	pods := map[string]string{}
	probes := map[string]string{
		"http": "httpGet: {path: /, port: 8080}",
		"tcp":  "tcpSocket: {port: 8080}",
		"exec": "exec: {command: [/bin/sh, -c, 'echo | nc -w 2 127.0.0.1 8080']}",
	}
	seconds := int(period.Seconds())
	for i := range count {
		kind := []string{"http", "tcp", "exec"}[i%3]
		name := fmt.Sprintf("%s-%d", kind, i)
		pods[name] = fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default, labels: {app: %s}}
spec:
  initContainers:
  - {name: init, image: "%s", imagePullPolicy: Never, command: [/bin/sh, -c, "echo ready > /data/index.html"], volumeMounts: [{name: data, mountPath: /data}]}
  containers:
  - name: web
    image: "%s"
    imagePullPolicy: Never
    command: [/bin/sh, -c, "trap 'exit 0' TERM; httpd -f -p 8080 -h /data & while :; do sleep 1; done"]
    volumeMounts: [{name: data, mountPath: /data}]
    resources: {requests: {cpu: 10m}, limits: {memory: 64Mi, cpu: 500m}}
    startupProbe: {%s, periodSeconds: %d, timeoutSeconds: 10, failureThreshold: 60}
    readinessProbe: {%s, periodSeconds: %d, timeoutSeconds: 10}
    livenessProbe: {%s, periodSeconds: %d, timeoutSeconds: 10, failureThreshold: 5}
  - {name: side, image: "%s", imagePullPolicy: Never, command: [/bin/sh, -c, "trap 'exit 0' TERM; while :; do echo tick; sleep 1; done"]}
  volumes: [{name: data, emptyDir: {}}]
  terminationGracePeriodSeconds: 5
`, name, kind, harness.Busybox, harness.Busybox, probes[kind], seconds, probes[kind], seconds, probes[kind], 2*seconds, harness.Busybox)
	}
	return pods
}

// Restarts counts the restarts of each container, by "pod/container".
func (k *Kubelet) Restarts() map[string]int32 {
	counts := map[string]int32{}
	for name, pod := range k.Pods() {
		for _, status := range pod.Status.ContainerStatuses {
			counts[name+"/"+status.Name] = status.RestartCount
		}
	}
	return counts
}
