//go:build e2e

package e2e

import (
	_ "embed"
	"encoding/json"
	"fmt"
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

// overContainerd are the metrics of a pod, with their labels, on the same kubelet over containerd:
// one "NAME LABEL,LABEL" a line. Only labels that are not empty are named.
//
//go:embed testdata/cadvisor-containerd.txt
var overContainerd string

// summaryOverContainerd are the fields of /stats/summary on the same kubelet with the same pod over
// containerd, one "PATH" or "PATH nonzero" a line.
//
//go:embed testdata/summary-containerd.txt
var summaryOverContainerd string

// busyPod writes, listens, uses swap and CPU up to its limits, and sends packets.
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

// TestKubeletReportsPodMetrics: a kubelet reports pods' metrics from its own cAdvisor, which asks
// berth what cgroups are, and from berth's CRI metrics.
func TestKubeletReportsPodMetrics(t *testing.T) {
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
			k.Await("the summary of node and pod", func() bool {
				page, err := k.Get("/stats/summary")
				if err != nil {
					return false
				}
				if now := missingFromSummary(page, name == "CRI"); !slices.Equal(now, missing) {
					t.Logf("missing from the summary: %q", now)
					missing = now
				}
				return len(missing) == 0
			})
		})
	}
}

var sampleLine = regexp.MustCompile(`^(container_\w+)\{(.*)\} `)

// missingFrom names the metrics and labels over containerd that no sample of the pod has. A pod has
// no pause container here, so nothing has the metrics of its processes, and CRI's metrics of a pod
// are those of its network alone.
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

// neverMeasured are metrics that a kubelet's cAdvisor always reports as 0: it does not measure
// load, and no container has a health check of its own.
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

// missingFromSummary names the fields over containerd that a summary of the kubelet lacks, or has
// as 0 while containerd had a value.
func missingFromSummary(page []byte, isCRI bool) []string {
	var summary any
	if err := json.Unmarshal(page, &summary); err != nil {
		return []string{err.Error()}
	}
	found := map[string]bool{}
	collectFields(summary, "", found)
	missing := []string{}
	for line := range strings.Lines(summaryOverContainerd) {
		field, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		nonzero, ok := found[field]
		switch {
		case ok && (nonzero || value == ""):
		case isCRI && notByCRI(field):
		default:
			missing = append(missing, field)
		}
	}
	return missing
}

// notByCRI reports a field that the kubelet's cAdvisor has and CRI's stats do not have: a pod's
// swap is not in CRI, the default interface is not among the listed ones, and the available swap of
// a container without swap is 0.
func notByCRI(field string) bool {
	return strings.HasPrefix(field, "pods[busy].swap.") || strings.HasPrefix(field, "pods[busy].network.interfaces[]") ||
		field == "pods[busy].containers[web].swap.swapAvailableBytes"
}

// collectFields reports for each field of a JSON value, by its path, whether it is neither 0 nor
// empty. Elements of lists are identified by their names, a pod's without the node's, those of
// interfaces by none.
func collectFields(value any, path string, into map[string]bool) {
	switch value := value.(type) {
	case map[string]any:
		for key, member := range value {
			collectFields(member, strings.TrimPrefix(path+"."+key, "."), into)
		}
	case []any:
		for _, element := range value {
			members, _ := element.(map[string]any)
			name, _ := members["name"].(string)
			if ref, ok := members["podRef"].(map[string]any); ok {
				name = strings.TrimSuffix(fmt.Sprint(ref["name"]), "-node0")
			}
			if strings.HasSuffix(path, "interfaces") {
				name = ""
			}
			collectFields(element, path+"["+name+"]", into)
		}
	default:
		into[path] = into[path] || value != float64(0) && value != "" && value != nil
	}
}

// TestKubeletFollowsEvents: with evented PLEG a kubelet gets exits as events, receives no event
// that it cannot use, and misses none.
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
	// The kubelet's own relist comes every five minutes, so it learned of the restart from the
	// event.
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
