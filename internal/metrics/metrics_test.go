package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/berthrun/berth/internal/errs"
)

// textOf returns the metrics as they are scraped.
func textOf(t *testing.T, m *Metrics) string {
	t.Helper()
	text, err := m.Text(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// has requires that the metrics have this line.
func has(t *testing.T, text, line string) {
	t.Helper()
	if !strings.Contains("\n"+text, "\n"+line+"\n") {
		name, _, _ := strings.Cut(line, "{")
		var near []string
		for have := range strings.Lines(text) {
			if strings.HasPrefix(have, strings.Fields(name)[0]) {
				near = append(near, have)
			}
		}
		t.Errorf("no line %q; there are:\n%s", line, strings.Join(near, ""))
	}
}

// whole returns metrics in which everything has happened and every source has figures.
func whole() *Metrics {
	m := New("1.2.3", "abc")
	m.RequestBegan("/runtime.v1.RuntimeService/RunPodSandbox")
	m.RequestEnded("/runtime.v1.RuntimeService/RunPodSandbox", "OK", 20*time.Millisecond)
	m.RequestBegan("/runtime.v1.RuntimeService/RunPodSandbox")
	m.RequestEnded("/runtime.v1.RuntimeService/RunPodSandbox", "Unavailable", 2*time.Second)
	for _, method := range []string{
		"ListPodSandbox", "StreamPodSandboxes", "StopPodSandbox", "RemovePodSandbox", "ListContainers", "StreamContainers",
		"CreateContainer", "StartContainer", "StopContainer", "RemoveContainer", "CheckpointContainer",
	} {
		m.RequestBegan("/runtime.v1.RuntimeService/" + method)
		m.RequestEnded("/runtime.v1.RuntimeService/"+method, "OK", time.Millisecond)
	}
	m.RequestBegan("/runtime.v1.ImageService/PullImage")
	for _, stage := range []string{"create sandbox", "attach network", "detach network"} {
		m.StageEnded("run sandbox", stage, 10*time.Millisecond)
	}
	m.StageSlow("run sandbox", "attach network")
	m.JobEnded("run sandbox", "ok", 30*time.Millisecond)
	m.JobResumed("remove")
	m.ContainerExited("OOMKilled")
	m.LeakFound("sandbox")
	m.LeakRepaired("sandbox")
	m.PluginCalled("bridge", "ADD", time.Millisecond, nil)
	m.PluginCalled("bridge", "DEL", time.Millisecond, errors.New("no"))
	m.PullBegan()
	m.PullBegan()
	m.PullEnded(1000, time.Second, nil)
	m.PullBegan()
	m.PullEnded(10, time.Second, fmt.Errorf("registry: %w", errs.Unavailable))
	m.PullBegan()
	m.PullEnded(0, time.Second, fmt.Errorf("the client has left: %w", context.Canceled))
	m.AddSource(Source{Name: "all", Read: func(_ context.Context, set Set) error {
		for i, f := range scrapedFamilies() {
			set(f.Name, float64(i+1), slices.Repeat([]string{"x"}, len(f.Labels))...)
		}
		return nil
	}})
	return m
}

// TestEveryMetricIsServed: each metric that the docs list has values once things have happened, with the
// type that they say.
func TestEveryMetricIsServed(t *testing.T) {
	text := textOf(t, whole())
	for _, f := range Families() {
		has(t, text, "# TYPE "+f.Name+" "+string(f.Type))
		has(t, text, "# HELP "+f.Name+" "+f.Help)
		if !regexp.MustCompile(`(?m)^` + f.Name + `(_count)?(\{[^\n]*\})? `).MatchString(text) {
			t.Errorf("%s has no value", f.Name)
		}
	}
	for _, line := range []string{
		`berth_operations_total{api="runtime",code="OK",method="RunPodSandbox"} 1`,
		`berth_operations_total{api="runtime",code="Unavailable",method="RunPodSandbox"} 1`,
		`berth_operation_duration_seconds_bucket{api="runtime",method="RunPodSandbox",le="0.025"} 1`,
		`berth_operation_duration_seconds_count{api="runtime",method="RunPodSandbox"} 2`,
		`berth_operations_in_flight{api="image",method="PullImage"} 1`,
		`berth_jobs_total{kind="run sandbox",result="ok"} 1`,
		`berth_job_stage_duration_seconds_count{kind="run sandbox",stage="attach network"} 1`,
		`berth_cni_operation_errors_total{operation="ADD",plugin="bridge"} 0`,
		`berth_cni_operation_errors_total{operation="DEL",plugin="bridge"} 1`,
		`berth_image_pulls_total{result="ok"} 1`,
		`berth_image_pulls_total{result="unavailable"} 1`,
		`berth_image_pulls_total{result="cancelled"} 1`,
		`berth_image_pull_bytes_total 1010`,
		`berth_image_pulls_in_flight 1`,
		`berth_leaks_found_total{kind="address"} 0`,
		`berth_metrics_source_up{source="all"} 1`,
	} {
		has(t, text, line)
	}
	for _, prefix := range []string{"go_goroutines ", "process_resident_memory_bytes ", `berth_build_info{commit="abc"`} {
		if !strings.Contains(text, "\n"+prefix) {
			t.Errorf("no %s", prefix)
		}
	}
}

// TestNamesAreConventional: names end with their units, and no label has the name of an object, or one that
// Prometheus sets itself.
func TestNamesAreConventional(t *testing.T) {
	forbidden := []string{"pod", "container", "image", "namespace", "name", "id", "uid", "job", "instance", "service", "endpoint"}
	seen := map[string]bool{}
	for _, f := range Families() {
		if seen[f.Name] {
			t.Errorf("%s is there twice", f.Name)
		}
		seen[f.Name] = true
		if !regexp.MustCompile(`^berth_[a-z][a-z_]*[a-z]$`).MatchString(f.Name) {
			t.Errorf("%s: want lower case and underscores after berth_", f.Name)
		}
		if (f.Type == Counter) != strings.HasSuffix(f.Name, "_total") {
			t.Errorf("%s is a %s: counters, and no others, end with _total", f.Name, f.Type)
		}
		if f.Type == Histogram && !strings.HasSuffix(f.Name, "_seconds") {
			t.Errorf("%s: the unit is missing", f.Name)
		}
		if !strings.HasSuffix(f.Help, ".") || strings.Contains(f.Help, "|") {
			t.Errorf("%s: help %q: want a sentence that fits into a table", f.Name, f.Help)
		}
		for _, label := range f.Labels {
			if slices.Contains(forbidden, label) {
				t.Errorf("%s has the label %s", f.Name, label)
			}
		}
	}
}

// TestLabelsAreBounded: values that others choose do not make more and more series.
func TestLabelsAreBounded(t *testing.T) {
	m := New("1", "2")
	for i := range 1000 {
		m.PluginCalled("plugin"+strconv.Itoa(i), "ADD", time.Millisecond, nil)
		m.ContainerExited("reason" + strconv.Itoa(i))
		m.StageEnded("stop", "stage"+strconv.Itoa(i), time.Millisecond)
	}
	text := textOf(t, m)
	for _, prefix := range []string{"berth_cni_operations_total{", "berth_container_exits_total{", "berth_job_stage_duration_seconds_count{"} {
		if n := strings.Count(text, "\n"+prefix); n != maxValuesOfOneLabel+1 {
			t.Errorf("%d series of %s", n, prefix)
		}
	}
	has(t, text, `berth_cni_operations_total{operation="ADD",plugin="other"} 900`)
}

// TestCountingAllocatesNothing: what a start reports costs it no memory.
func TestCountingAllocatesNothing(t *testing.T) {
	m, many := New("1", "2"), New("1", "2")
	for i := range maxValuesOfOneLabel {
		many.PluginCalled("plugin"+strconv.Itoa(i), "ADD", time.Millisecond, nil)
	}
	for name, count := range map[string]func(){
		"request": func() {
			m.RequestBegan("/runtime.v1.RuntimeService/RunPodSandbox")
			m.RequestEnded("/runtime.v1.RuntimeService/RunPodSandbox", "OK", time.Millisecond)
		},
		"stage":                   func() { m.StageEnded("run sandbox", "attach network", time.Millisecond) },
		"job":                     func() { m.JobEnded("run sandbox", "ok", time.Millisecond) },
		"plugin":                  func() { m.PluginCalled("bridge", "ADD", time.Millisecond, nil) },
		"plugin, one of too many": func() { many.PluginCalled("bridge", "ADD", time.Millisecond, nil) },
	} {
		if n := testing.AllocsPerRun(100, count); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// TestSourceThatFails: the others are served, and what is missing can be seen.
func TestSourceThatFails(t *testing.T) {
	m := New("1", "2")
	m.AddSource(Source{Name: "bad", Read: func(_ context.Context, set Set) error {
		set(Images, 3)
		return errs.Unavailable
	}})
	m.AddSource(Source{Name: "good", Read: func(_ context.Context, set Set) error {
		set(Pods, 2, "ready")
		return nil
	}})
	text := textOf(t, m)
	has(t, text, `berth_metrics_source_up{source="bad"} 0`)
	has(t, text, `berth_metrics_source_up{source="good"} 1`)
	has(t, text, `berth_images 3`)
	has(t, text, `berth_pods{state="ready"} 2`)
}

// TestSourceThatHangs: a scrape does not wait for it for long, and reads it again once it has returned.
func TestSourceThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, release, reads := New("1", "2"), make(chan struct{}), 0
		m.AddSource(Source{Name: "hung", Read: func(_ context.Context, set Set) error {
			reads++
			set(Images, 3)
			<-release
			return nil
		}})
		m.AddSource(Source{Name: "good", Read: func(_ context.Context, set Set) error {
			set(Pods, 2, "ready")
			return nil
		}})
		var scrapes []bool
		for range 2 {
			text := textOf(t, m)
			has(t, text, `berth_metrics_source_up{source="hung"} 0`)
			has(t, text, `berth_pods{state="ready"} 2`)
			scrapes = append(scrapes, strings.Contains(text, "\nberth_images 3\n"))
		}
		if !slices.Equal(scrapes, []bool{true, false}) {
			t.Errorf("%v: want what was set before the source hung in the first scrape alone", scrapes)
		}
		if reads != 1 {
			t.Errorf("the source is read %d times at once", reads)
		}
		close(release)
		synctest.Wait()
		text := textOf(t, m)
		has(t, text, `berth_metrics_source_up{source="hung"} 1`)
		has(t, text, `berth_images 3`)
	})
}

// TestScrapesAtTheSameTime: each has the figures of every source, which is read once for all of them.
func TestScrapesAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, release, reads := New("1", "2"), make(chan struct{}), 0
		m.AddSource(Source{Name: "slow", Read: func(_ context.Context, set Set) error {
			reads++
			<-release
			set(Images, 3)
			return nil
		}})
		texts := make(chan []byte)
		for range 3 {
			go func() {
				text, err := m.Text(t.Context())
				if err != nil {
					t.Error(err)
				}
				texts <- text
			}()
		}
		synctest.Wait()
		close(release)
		for range 3 {
			text := string(<-texts)
			has(t, text, `berth_metrics_source_up{source="slow"} 1`)
			has(t, text, `berth_images 3`)
		}
		if reads != 1 {
			t.Errorf("the source is read %d times", reads)
		}
	})
}

// TestValuesThatAreLeftOut: a value with too few labels is logged, once, and the others are served.
func TestValuesThatAreLeftOut(t *testing.T) {
	var log strings.Builder
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	m := New("1", "2")
	m.AddSource(Source{Name: "bad", Read: func(_ context.Context, set Set) error {
		set(Pods, 2)
		set(Images, 3)
		return nil
	}})
	for range 2 {
		has(t, textOf(t, m), `berth_images 3`)
	}
	if n := strings.Count(log.String(), "berth_pods"); n != 1 {
		t.Errorf("berth_pods is logged %d times:\n%s", n, log.String())
	}
}

// TestSourceThatPanics: a fault of one source is not one of the daemon.
func TestSourceThatPanics(t *testing.T) {
	m := New("1", "2")
	m.AddSource(Source{Name: "bad", Read: func(context.Context, Set) error { panic("oh no") }})
	has(t, textOf(t, m), `berth_metrics_source_up{source="bad"} 0`)
}

// TestSupervisorsProcess: the figures of the process that a source names are in the same scrape, and in none once it is gone.
func TestSupervisorsProcess(t *testing.T) {
	m, pid := New("1", "2"), os.Getpid()
	m.AddSource(Source{Name: "engine", Read: func(context.Context, Set) error {
		m.SetSupervisorPid(pid)
		return nil
	}})
	if text := textOf(t, m); !strings.Contains(text, "\nberth_supervisor_process_resident_memory_bytes ") {
		t.Error("the first scrape has no process")
	}
	pid = 0
	if text := textOf(t, m); strings.Contains(text, "berth_supervisor_process_") {
		t.Error("there is a process without a pid")
	}
}

// TestPeers: the metrics of other runtimes appear by the key alone, and have the values of ours.
func TestPeers(t *testing.T) {
	m := whole()
	plain := textOf(t, m)
	m.SetPeers(PeerNames())
	text := textOf(t, m)
	names := map[string]bool{}
	for _, f := range peerFamilies() {
		if strings.Contains(plain, f.name) {
			t.Errorf("%s is there without the key", f.name)
		}
		if !strings.Contains(text, "# TYPE "+f.name+" ") {
			t.Errorf("%s (%s) is not there", f.name, f.peer)
		}
		if names[f.name+" "+f.from] {
			t.Errorf("%s is made from %s twice", f.name, f.from)
		}
		names[f.name+" "+f.from] = true
	}
	for _, line := range []string{
		`containerd_cri_sandbox_create_network_seconds_count 1`,
		`containerd_cri_container_start_seconds_count{runtime="berth"} 1`,
		`containerd_cri_network_plugin_operations_total_total{operation_type="set_up_pod"} 1`,
		`containerd_cri_network_plugin_operations_errors_total_total{operation_type="tear_down_pod"} 1`,
		`containerd_cri_sandboxed_image_pulls_total{status="failure"} 2`,
		`grpc_server_handled_total{grpc_code="Unavailable",grpc_method="RunPodSandbox",grpc_service="runtime.v1.RuntimeService",grpc_type="unary"} 1`,
		`container_runtime_crio_operations_total{operation="RunPodSandbox"} 2`,
		`container_runtime_crio_operations_errors_total{operation="RunPodSandbox"} 1`,
		`container_runtime_crio_operations_latency_seconds_total_count{operation="RunPodSandbox"} 2`,
		`container_runtime_crio_operations_latency_seconds_total_sum{operation="RunPodSandbox"} 2.02`,
		`container_runtime_crio_operations_latency_seconds_total{operation="RunPodSandbox",quantile="0.5"} 0.025`,
		`container_runtime_crio_operations_latency_seconds_total{operation="network_setup_pod",quantile="0.5"} 0.0075`,
		`container_runtime_crio_image_pulls_success_total 1`,
		`container_runtime_crio_image_pulls_failure_total{error="UNAVAILABLE"} 1`,
		`container_runtime_crio_containers_oom_total 1`,
	} {
		has(t, text, line)
	}
	m.SetPeers([]string{CRIO})
	if text := textOf(t, m); strings.Contains(text, "containerd_") || !strings.Contains(text, "crio_") {
		t.Error("one peer is not that one")
	}
}

// TestEstimate: quantiles are where the values of a histogram are.
func TestEstimate(t *testing.T) {
	histogram := func(counts ...uint64) *dto.Histogram {
		h := &dto.Histogram{}
		for i, count := range counts {
			bound := float64(i + 1)
			h.Bucket = append(h.Bucket, &dto.Bucket{UpperBound: &bound, CumulativeCount: &count})
			h.SampleCount = &count
		}
		return h
	}
	above := histogram(1, 1)
	all := uint64(10)
	above.SampleCount = &all
	for name, c := range map[string]struct {
		h    *dto.Histogram
		q    float64
		want float64
	}{
		"the middle of one bucket": {histogram(10), 0.5, 0.5},
		"the second bucket":        {histogram(5, 10), 0.9, 1.8},
		"an empty bucket before":   {histogram(0, 0, 4), 0.5, 2.5},
		"above the highest bound":  {above, 0.99, 2},
	} {
		if got := estimate(c.h, c.q); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if got := estimate(histogram(0), 0.5); !math.IsNaN(got) {
		t.Errorf("without values: %v", got)
	}
}
