//go:build integration

package builtin_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// BenchmarkPod measures the creation and removal of a pod's network: create the namespace, attach,
// detach, remove the namespace.
func BenchmarkPod(b *testing.B) {
	for _, ports := range []int{0, 2} {
		for _, parallel := range []int{1, 10} {
			b.Run(fmt.Sprintf("ports=%d/parallel=%d", ports, parallel), func(b *testing.B) { benchPods(b, ports, parallel) })
		}
	}
}

func benchPods(b *testing.B, ports, parallel int) {
	l := newLab(b)
	n := l.open(l.config())
	defer n.Close()
	var (
		mu             sync.Mutex
		attach, detach []time.Duration
		todo           = make(chan int)
		workers        sync.WaitGroup
	)
	one := func(i int) error {
		id := fmt.Sprintf("%011x%053x", i, 0)
		att := &network.Attachment{SandboxID: id, NetNS: filepath.Join(l.dir, "bench-"+id[:11]), Name: "p", Namespace: "d"}
		for p := range ports {
			att.Ports = append(att.Ports, network.Port{Protocol: "tcp", ContainerPort: 80, HostPort: uint16(2000 + (ports*i+p)%20000)})
		}
		if err := sysns.NewNetNS(att.NetNS); err != nil {
			return err
		}
		start := time.Now()
		_, err := n.Attach(context.Background(), att)
		up := time.Since(start)
		start = time.Now()
		derr := n.Detach(context.Background(), att)
		down := time.Since(start)
		mu.Lock()
		attach, detach = append(attach, up), append(detach, down)
		mu.Unlock()
		if err == nil {
			err = derr
		}
		if rerr := sysns.RemoveNetNS(att.NetNS); err == nil {
			err = rerr
		}
		return err
	}
	for range parallel {
		workers.Go(func() {
			for i := range todo {
				if err := one(i); err != nil {
					b.Error(err)
				}
			}
		})
	}
	i := 0
	for b.Loop() {
		i++
		todo <- i
	}
	close(todo)
	workers.Wait()
	b.ReportMetric(percentile(attach, 50), "attach-p50-µs")
	b.ReportMetric(percentile(attach, 99), "attach-p99-µs")
	b.ReportMetric(percentile(detach, 50), "detach-p50-µs")
	b.ReportMetric(percentile(detach, 99), "detach-p99-µs")
}

func percentile(d []time.Duration, p int) float64 {
	slices.Sort(d)
	return float64(d[len(d)*p/100].Nanoseconds()) / 1000
}
