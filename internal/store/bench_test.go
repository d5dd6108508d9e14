package store

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// BenchmarkOpen reads the records of a full node, as each start does.
func BenchmarkOpen(b *testing.B) {
	const count = 1000
	dir := b.TempDir()
	options := Options[thing]{Path: filepath.Join(dir, "things"), Quarantine: filepath.Join(dir, "quarantine")}
	d, _, err := Open(options)
	if err != nil {
		b.Fatal(err)
	}
	for n := range count {
		config := &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "web"}, Labels: map[string]string{}, Annotations: map[string]string{}}
		for i := range 30 {
			config.Envs = append(config.Envs, &runtimeapi.KeyValue{Key: fmt.Sprintf("WEB_SERVICE_PORT_%d", i), Value: fmt.Appendf(nil, "tcp://10.96.%d.1:8080", i)})
		}
		for i := range 10 {
			config.Mounts = append(config.Mounts, &runtimeapi.Mount{
				ContainerPath: fmt.Sprintf("/var/run/secrets/kubernetes.io/volume-%d", i),
				HostPath:      fmt.Sprintf("/var/lib/kubelet/pods/5f0b1c9e-3f0e-4a52-9d0c-8a2d3f6b7c11/volumes/kubernetes.io~projected/volume-%d", i),
			})
			config.Annotations[fmt.Sprintf("io.kubernetes.container.annotation-%d", i)] = "a value of some length, as the kubelet's are"
		}
		if err := d.Create(fmt.Sprintf("%064x", n), &thing{Name: "web", Count: n, Config: MessageOf(config)}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	before := cpu(b)
	for b.Loop() {
		if _, bad, err := Open(options); err != nil || len(bad) > 0 {
			b.Fatal(bad, err)
		}
	}
	b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
}

// cpu is the time that this process has used.
func cpu(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
