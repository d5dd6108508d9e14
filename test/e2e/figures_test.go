//go:build e2e

package e2e

import (
	_ "embed"
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/kubelet"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// overContainerd are the metrics of a pod, with their labels, on the same kubelet
// over containerd: one "NAME LABEL,LABEL" a line. Labels are named if they are not
// empty.
//
//go:embed testdata/cadvisor-containerd.txt
var overContainerd string

// busyPod writes, listens, uses swap's and CPU's limits and sends packets.
const busyPod = `apiVersion: v1
kind: Pod
metadata: {name: busy, namespace: default, labels: {app: busy}}
spec:
  containers:
  - name: web
    image: "` + harness.Busybox + `"
    imagePullPolicy: Never
    command: [/bin/sh, -c, "nc -l -p 8080 & dd if=/dev/zero of=/written bs=1024 count=100; while :; do ping -c 1 -W 1 192.0.2.10; sleep 0.2; done"]
    resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 64Mi, cpu: 500m}}
    livenessProbe: {exec: {command: [/bin/true]}, periodSeconds: 2, timeoutSeconds: 10}
`

// TestKubeletTellsFiguresOfPods: by its own cAdvisor, which asks berth what cgroups
// are, and by berth's CRI metrics.
func TestKubeletTellsFiguresOfPods(t *testing.T) {
	for name, gate := range map[string]string{"cAdvisor": "", "CRI": "featureGates: {PodAndContainerStatsFromCRI: true}\n"} {
		t.Run(name, func(t *testing.T) {
			asked := filepath.Join(t.TempDir(), "containerd.sock")
			b := harness.Start(t, harness.Options{Args: []string{"--cadvisor-socket", asked}})
			k := kubelet.Start(t, b, kubelet.Options{Config: gate, Args: []string{"--containerd=" + asked}})
			k.Add("busy", busyPod)
			k.AwaitReady("busy")
			var missing []string
			k.Await("the metrics of the pod", func() bool {
				page, err := k.Get("/metrics/cadvisor")
				if err != nil {
					return false
				}
				if now := missingFrom(string(page), name == "CRI"); !slices.Equal(now, missing) {
					t.Logf("missing: %q", now)
					missing = now
				}
				return len(missing) == 0
			})
			k.Await("the network of the pod", func() bool { return summaryHasNetwork(k, "busy") })
		})
	}
}

var sampleLine = regexp.MustCompile(`^(container_\w+)\{(.*)\} `)

// missingFrom names the metrics and labels over containerd that no sample of the pod
// has. A pod has no pause container here: what that one's processes have is nobody's,
// and CRI's metrics tell of its network alone.
func missingFrom(page string, isCRI bool) []string {
	found := map[string]bool{}
	for line := range strings.Lines(page) {
		match := sampleLine.FindStringSubmatch(line)
		if match != nil && strings.Contains(match[2], `pod="busy-node0"`) {
			found[match[1]+" "+labelNames(match[2])] = true
		}
	}
	missing := []string{}
	for line := range strings.Lines(overContainerd) {
		metric, labels, _ := strings.Cut(strings.TrimSpace(line), " ")
		ofPause := strings.Contains(labels, "image,") && !strings.Contains(labels, "container,")
		switch {
		case found[metric+" "+labels]:
		case ofPause && (metric == "container_ulimits_soft" || metric == "container_cpu_usage_seconds_total"):
		case isCRI && ofPause && !strings.HasPrefix(metric, "container_network_"):
		case isCRI && slices.Contains(neverMeasured(), metric):
		default:
			missing = append(missing, metric+" "+labels)
		}
	}
	return missing
}

// neverMeasured are metrics that a kubelet's cAdvisor always tells as 0: it does not
// measure load, and no container has a health check of its own.
func neverMeasured() []string {
	return []string{"container_cpu_load_average_10s", "container_cpu_load_d_average_10s", "container_tasks_state", "container_health_state"}
}

var labelPair = regexp.MustCompile(`(\w+)="([^"]*)"`)

// labelNames are the names of the labels that are not empty.
func labelNames(labels string) string {
	var names []string
	for _, pair := range labelPair.FindAllStringSubmatch(labels, -1) {
		if pair[2] != "" {
			names = append(names, pair[1])
		}
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

func summaryHasNetwork(k *kubelet.Kubelet, pod string) bool {
	data, err := k.Get("/stats/summary")
	var summary struct {
		Pods []struct {
			PodRef  struct{ Name string }
			Network *struct {
				Name    string
				TxBytes uint64
			}
			Containers []struct {
				Rootfs *struct{ UsedBytes uint64 }
				CPU    *struct{ UsageNanoCores *uint64 }
			}
		}
	}
	if err != nil || json.Unmarshal(data, &summary) != nil {
		return false
	}
	for _, p := range summary.Pods {
		if p.PodRef.Name == pod+"-node0" && p.Network != nil && p.Network.Name == "eth0" && p.Network.TxBytes > 0 &&
			len(p.Containers) == 1 && p.Containers[0].Rootfs != nil && p.Containers[0].Rootfs.UsedBytes >= 100<<10 &&
			p.Containers[0].CPU != nil && p.Containers[0].CPU.UsageNanoCores != nil {
			return true
		}
	}
	return false
}

// TestKubeletFollowsEvents: with evented PLEG a kubelet hears of exits without asking,
// reads no event that it cannot use, and misses none.
func TestKubeletFollowsEvents(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	k := kubelet.Start(t, b, kubelet.Options{Config: "featureGates: {EventedPLEG: true}\n"})
	for name, manifest := range kubelet.Manifests(3, 2*time.Second) {
		k.Add(name, manifest)
	}
	k.AwaitReady("http-0", "tcp-1", "exec-2")
	k.Await("the kubelet to subscribe", func() bool {
		page, err := k.Get("/metrics")
		return err == nil && strings.Contains(string(page), "\nkubelet_evented_pleg_connection_success_count 1")
	})
	// Its own relist comes every five minutes: the restart is seen by the event.
	began := time.Now()
	for _, c := range containers(t, b) {
		if c.Metadata.Name == "side" {
			if _, err := b.Runtime.StopContainer(b.Ctx(), &runtimeapi.StopContainerRequest{ContainerId: c.Id}); err != nil {
				t.Fatal(err)
			}
		}
	}
	k.Await("every restart", func() bool {
		restarts := k.Restarts()
		return restarts["http-0/side"] == 1 && restarts["tcp-1/side"] == 1 && restarts["exec-2/side"] == 1
	})
	t.Logf("restarts were seen %v after the stops", time.Since(began).Round(100*time.Millisecond))
	for _, name := range []string{"http-0", "tcp-1", "exec-2"} {
		k.Remove(name)
	}
	k.Await("all pods to be gone", func() bool { return len(k.Pods()) == 0 && len(sandboxes(t, b)) == 0 })
	for line := range strings.Lines(k.Log()) {
		if strings.HasPrefix(line, "E") && strings.Contains(line, "Evented PLEG") {
			t.Errorf("the kubelet says: %s", line)
		}
	}
	status, err := b.Runtime.Status(b.Ctx(), &runtimeapi.StatusRequest{Verbose: true})
	if err != nil || !strings.Contains(status.Info["events"], `"dropped":0`) {
		t.Errorf("events %s, %v; want none dropped", status.GetInfo()["events"], err)
	}
}
