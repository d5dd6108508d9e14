//go:build integration

package integration

import (
	"bufio"
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/sys/sysns"
	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// scraped are the values of one scrape, by series.
type scraped map[string]float64

// sum adds up the series that begin like this.
func (s scraped) sum(prefix string) (sum float64) {
	for series, value := range s {
		if strings.HasPrefix(series, prefix) {
			sum += value
		}
	}
	return sum
}

// scrape reads the metrics from a TCP address in the instance's host namespace, as Prometheus does.
func scrape(b *harness.Berth, address string) (scraped, error) {
	b.T.Helper()
	dial := func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
		err = sysns.InNetNS("/run/netns/"+b.NetNS, func() (err error) {
			conn, err = new(net.Dialer).DialContext(ctx, "tcp", address)
			return err
		})
		return conn, err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(b.Ctx(), http.MethodGet, "http://"+address+"/metrics", http.NoBody)
	if err != nil {
		b.T.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b.T.Fatalf("the metrics answer %s", resp.Status)
	}
	return parseMetrics(b.T, resp.Body), nil
}

func parseMetrics(t testing.TB, text io.Reader) scraped {
	t.Helper()
	values := scraped{}
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			t.Fatalf("metrics: %q: %v", line, err)
		}
		values[line[:at]] = value
	}
	return values
}

// TestMetrics: what a pod does moves the counters, and the gauges show what there is. SIGHUP turns the address off; the
// command goes on to work.
func TestMetrics(t *testing.T) {
	const address = "127.0.0.1:9717"
	opts := fakeCNI(t, `test "$CNI_COMMAND" = ADD && echo '`+fakeResult+`'; exit 0`)
	plain := opts.Config
	opts.Config += "[metrics]\nlisten = '" + address + "'\npeers = ['containerd', 'crio', 'dockershim']\n"
	b := harness.Start(t, opts)
	before, err := scrape(b, address)
	if err != nil {
		t.Fatal(err)
	}

	first := b.RunPod("alpha-web", "echo hello")
	b.AwaitExit(first.Container)
	if _, err := b.Runtime.StopContainer(b.Ctx(), &runtimeapi.StopContainerRequest{ContainerId: first.Container}); err != nil {
		t.Error(err)
	}
	if _, err := b.Runtime.RemoveContainer(b.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: first.Container}); err != nil {
		t.Error(err)
	}
	second := b.RunPod("beta-web", "sleep 1000")
	if _, err := b.Runtime.ContainerStatus(b.Ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: "absent"}); err == nil {
		t.Error("an absent container has a status")
	}
	if _, err := b.Images.PullImage(b.Ctx(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "127.0.0.1:1/absent:1"}}); err == nil {
		t.Error("an image of no registry was pulled")
	}
	b.RemovePod(first.Sandbox)
	after, err := scrape(b, address)
	if err != nil {
		t.Fatal(err)
	}

	publicDashboards(t, false, slices.Collect(maps.Keys(after)), nil)
	moved := map[string]float64{
		`berth_operations_total{api="runtime",code="OK",method="RunPodSandbox"}`:                 2,
		`berth_operations_total{api="runtime",code="NotFound",method="ContainerStatus"}`:         1,
		`berth_operation_duration_seconds_count{api="runtime",method="CreateContainer"}`:         2,
		`berth_jobs_total{kind="run sandbox",result="ok"}`:                                       2,
		`berth_jobs_total{kind="remove",result="ok"}`:                                            1,
		`berth_job_duration_seconds_count{kind="start container"}`:                               2,
		`berth_job_stage_duration_seconds_count{kind="run sandbox",stage="attach network"}`:      2,
		`berth_job_stage_duration_seconds_count{kind="start container",stage="start container"}`: 2,
		`berth_cni_operations_total{operation="ADD",plugin="fake"}`:                              2,
		`berth_cni_operations_total{operation="DEL",plugin="fake"}`:                              1,
		`berth_cni_operation_duration_seconds_count{operation="ADD",plugin="fake"}`:              2,
		`berth_image_pulls_total{result="`:                                                       1,
		`berth_container_exits_total{reason="Completed"}`:                                        1,
		`berth_events_published_total`:                                                           8,
		`containerd_cri_sandbox_create_network_seconds_count`:                                    2,
		`containerd_cri_container_start_seconds_count{runtime="berth"}`:                          2,
		`container_runtime_crio_operations_total{operation="RunPodSandbox"}`:                     2,
		`container_runtime_crio_operations_errors_total{operation="PullImage"}`:                  1,
	}
	if b.Docker == nil {
		moved[`berth_container_creates_total{`] = 2
		moved[`berth_log_read_bytes_total`] = 6
		moved[`berth_log_written_lines_total`] = 1
		moved[`berth_log_written_bytes_total`] = 20
		for _, pool := range []string{"network_namespaces", "root_filesystems"} {
			hits, misses := `berth_pool_hits_total{pool="`+pool+`"}`, `berth_pool_misses_total{pool="`+pool+`"}`
			if n := after[hits] + after[misses] - before[hits] - before[misses]; n < 2 {
				t.Errorf("pool %s: %v objects were taken", pool, n)
			}
		}
	} else {
		moved[`berth_engine_calls_total{`] = 4
	}
	for series, least := range moved {
		if n := after.sum(series) - before.sum(series); n < least {
			t.Errorf("%s has moved by %v, want %v or more", series, n, least)
		}
	}
	shown := map[string]float64{
		`berth_pods{state="ready"}`: 1, `berth_containers{state="running"}`: 1, `berth_jobs{kind="run sandbox",state="running"}`: 0,
		`berth_metrics_source_up{source="engine"}`: 1, `berth_metrics_source_up{source="images"}`: 1, `berth_metrics_source_up{source="disk"}`: 1,
		`berth_image_pulls_in_flight`: 0, `berth_leaks_found_total{kind="sandbox"}`: 0,
	}
	if b.Docker == nil {
		shown[`berth_supervisor_up`], shown[`berth_log_faults`], shown[`berth_log_pending_bytes`] = 1, 0, 0
	}
	for series, want := range shown {
		if value, ok := after[series]; !ok || value != want {
			t.Errorf("%s is %v (%v), want %v", series, value, ok, want)
		}
	}
	for _, series := range []string{"berth_images", "berth_images_bytes", `berth_disk_used_bytes{area="images"}`, "go_goroutines", "process_resident_memory_bytes"} {
		if after[series] <= 0 {
			t.Errorf("%s is %v", series, after[series])
		}
	}
	if b.Docker == nil && (after["berth_supervisor_process_resident_memory_bytes"] <= 0 || after["berth_supervisor_open_fds"] <= 0) {
		t.Error("the supervisor has no memory or descriptors")
	}
	for series := range after {
		for _, name := range []string{first.Sandbox, second.Container, "alpha-web", "beta-web", "busybox", "127.0.0.1:1"} {
			if strings.Contains(series, name) {
				t.Errorf("%s names an object", series)
			}
		}
	}

	stopMetrics(b, plain, address)
	if printed := parseMetrics(t, strings.NewReader(b.MustCLI("metrics"))); printed[`berth_pods{state="ready"}`] != 1 {
		t.Errorf("berth metrics prints %v ready pods", printed[`berth_pods{state="ready"}`])
	}
}

// stopMetrics reloads a configuration without an address for metrics.
func stopMetrics(b *harness.Berth, config, address string) {
	b.T.Helper()
	if err := os.WriteFile(filepath.Join(b.Dir, "berth.toml"), []byte(config), 0o600); err != nil {
		b.T.Fatal(err)
	}
	if err := syscall.Kill(b.DaemonPid(), syscall.SIGHUP); err != nil {
		b.T.Fatal(err)
	}
	b.Await("the address to be closed", func() bool {
		_, err := scrape(b, address)
		return err != nil
	})
}
