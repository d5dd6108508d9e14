package churn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	corev1 "k8s.io/api/core/v1"
)

// healthImage has busybox, and /bin/health, a server of gRPC's health protocol.
const healthImage = "docker.io/library/health:test"

// importHealth builds the image and imports it.
func importHealth(t testing.TB, b *harness.Berth) {
	t.Helper()
	program := filepath.Join(b.Dir, "health")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "github.com/berthrun/berth/test/harness/churn/health")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the health server: %v\n%s", err, out)
	}
	archive := filepath.Join(b.Dir, "health.tar")
	file, err := os.Create(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	busybox := require.Binary(t, "busybox")
	files := []imagetest.File{
		{Path: "/bin/busybox", Source: busybox, Mode: 0o755},
		{Path: "/bin/health", Source: program, Mode: 0o755},
		{Path: "/tmp", Dir: true, Mode: 0o1777},
	}
	for _, applet := range []string{"sh", "sleep", "kill", "touch", "wc", "test"} {
		files = append(files, imagetest.File{Path: "/bin/" + applet, Symlink: "busybox"})
	}
	if err := imagetest.Archive(file, imagetest.Spec{Name: healthImage, Files: files, Env: []string{"PATH=/bin"}, Cmd: []string{"sh"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := file.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Import(file); err != nil {
		t.Fatal(err)
	}
}

// server is a program that a kind of probe succeeds for until /tmp/sick exists.
type server struct {
	image, start, probe string
	// sicken makes the probe fail.
	sicken string
}

func serverFor(kind string) server {
	const httpd = "mkdir /tmp/www; echo well > /tmp/www/index.html; httpd -f -p 8080 -h /tmp/www & server=$!"
	return map[string]server{
		"http": {harness.Busybox, httpd, "httpGet: {path: /index.html, port: 8080}", "rm /tmp/www/index.html"},
		"tcp":  {harness.Busybox, httpd, "tcpSocket: {port: 8080}", "kill $server"},
		"exec": {harness.Busybox, "true", "exec: {command: [/bin/sh, -c, 'test ! -e /tmp/sick']}", "touch /tmp/sick"},
		"grpc": {healthImage, "health 8080 /tmp/sick &", "grpc: {port: 8080}", "touch /tmp/sick"},
	}[kind]
}

// probes: a pod whose three probes succeed is ready and keeps running.
func probes(ctx context.Context, p *pod, kind string) error {
	s := serverFor(kind)
	err := p.create(ctx, fmt.Sprintf(`
terminationGracePeriodSeconds: 10
containers:
- name: main
  image: %[1]s
  args: ["trap 'exit 0' TERM", %[2]q, "while :; do sleep 1; done"]
  resources: {requests: {cpu: 10m}, limits: {memory: 64Mi, cpu: 500m}}
  startupProbe: {%[3]s, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 60}
  readinessProbe: {%[4]s, periodSeconds: 1, timeoutSeconds: 10}
  livenessProbe: {%[3]s, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 6}
`, s.image, s.start, s.probe, strings.ReplaceAll(s.probe, "/tmp/sick", "/tmp/busy")))
	if err != nil {
		return err
	}
	if err := p.awaitReady(ctx); err != nil {
		return err
	}
	pause(ctx, 5*time.Second+randomUpTo(p.rng, 15*time.Second))
	if err := p.awaitReady(ctx); err != nil {
		return err
	}
	if kind != "exec" {
		return nil
	}
	return p.notReadyForAWhile(ctx)
}

// notReadyForAWhile: readiness changes, and the container keeps running.
func (p *pod) notReadyForAWhile(ctx context.Context) error {
	status, err := p.container(ctx, "main")
	if err != nil {
		return err
	}
	if err := p.execSync(ctx, status.Status.Id, "touch /tmp/busy"); err != nil {
		return err
	}
	_, err = p.await(ctx, "the pod not to be ready", func(seen *corev1.Pod) bool { return !ready(seen) })
	if err := errors.Join(err, p.execSync(ctx, status.Status.Id, "rm /tmp/busy")); err != nil {
		return err
	}
	return p.awaitReady(ctx)
}

// failingLiveness: a failing liveness probe restarts the container, once.
func failingLiveness(ctx context.Context, p *pod, kind string) error {
	s := serverFor(kind)
	p.ordered["main"] = 1
	err := p.create(ctx, fmt.Sprintf(`
terminationGracePeriodSeconds: 10
containers:
- name: main
  image: %[1]s
  args:
  - "trap 'exit 33' TERM"
  - %[2]q
  - "sleep 5; [ $(wc -l < /churn/starts) = 1 ] && { %[4]s; }"
  - "while :; do sleep 1; done"
  startupProbe: {%[3]s, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 60}
  livenessProbe: {%[3]s, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 3}
`, s.image, s.start, s.probe, s.sicken))
	if err != nil {
		return err
	}
	seen, err := p.await(ctx, "the restart", func(seen *corev1.Pod) bool { return p.restarted(seen, "main") })
	if err != nil {
		return err
	}
	if err := p.checkLast(seen, "main", 33); err != nil {
		return err
	}
	pause(ctx, 8*time.Second)
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
