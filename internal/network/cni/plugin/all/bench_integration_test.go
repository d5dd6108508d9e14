//go:build integration && e2e

package all_test

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/berthrun/berth/internal/sys/sysns"
)

// BenchmarkPod measures ADD and DEL of a pod, in turn by the reference's programs and by the
// plugins in process, and reports the medians and their ratios.
func BenchmarkPod(b *testing.B) {
	bin := referencePlugins(b, "v1.9.1")
	link := with("bridge", `"isDefaultGateway":true`, hostLocal(rangesBoth))
	masqueraded := with("bridge", `"isDefaultGateway":true,"ipMasq":true`, hostLocal(ranges4))
	for _, c := range []struct{ name, conf string }{
		{"bridge", list("1.0.0", link)},
		{"ptp", list("1.0.0", with("ptp", hostLocal(rangesBoth)))},
		{"bridge+bandwidth+tuning", list("1.0.0", link, with("bandwidth", `"capabilities":{"bandwidth":true}`), with("tuning", `"sysctl":{"net.core.somaxconn":"400"}`))},
		{"bridge+ipMasq+portmap", list("1.0.0", masqueraded, with("portmap", `"capabilities":{"portMappings":true}`))},
	} {
		b.Run(c.name, func(b *testing.B) { benchPod(b, bin, c.conf) })
	}
}

func benchPod(b *testing.B, bin, conf string) {
	var worlds [2]*world
	var lists [2]*libcni.NetworkConfigList
	for i := range worlds {
		worlds[i] = newWorld(b, bin, i == 1)
		var err error
		if lists[i], err = libcni.NetworkConfFromBytes([]byte(strings.ReplaceAll(conf, "%DIR%", worlds[i].dir))); err != nil {
			b.Fatal(err)
		}
	}
	var added, deleted [2][]time.Duration
	for n := 0; b.Loop(); n++ {
		for i, w := range worlds {
			rt := &libcni.RuntimeConf{
				ContainerID: "pod" + strconv.Itoa(n), NetNS: filepath.Join(w.dir, "pod"), IfName: "eth0",
				CapabilityArgs: map[string]any{
					"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}},
					"bandwidth":    map[string]int{"ingressRate": 1e9, "ingressBurst": 1e6, "egressRate": 1e9, "egressBurst": 1e6},
				},
			}
			if err := sysns.NewNetNS(rt.NetNS); err != nil {
				b.Fatal(err)
			}
			start := time.Now()
			if _, err := w.lib.AddNetworkList(b.Context(), lists[i], rt); err != nil {
				b.Fatal(err)
			}
			added[i] = append(added[i], time.Since(start))
			start = time.Now()
			if err := w.lib.DelNetworkList(b.Context(), lists[i], rt); err != nil {
				b.Fatal(err)
			}
			deleted[i] = append(deleted[i], time.Since(start))
			if err := sysns.RemoveNetNS(rt.NetNS); err != nil {
				b.Fatal(err)
			}
		}
	}
	for what, times := range map[string][2][]time.Duration{"ADD": added, "DEL": deleted} {
		reference, berth := median(times[0]), median(times[1])
		b.ReportMetric(float64(reference.Microseconds()), what+"-programs-µs")
		b.ReportMetric(float64(berth.Microseconds()), what+"-in-process-µs")
		b.ReportMetric(float64(reference)/float64(berth), what+"-ratio")
	}
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}
