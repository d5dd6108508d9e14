package cgroup

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
)

func TestStatsV2(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"cpu.stat":            "usage_usec 1500\nuser_usec 1000\n",
		"memory.current":      "1000\n",
		"memory.max":          "5000\n",
		"memory.stat":         "anon 300\ninactive_file 400\npgfault 12\npgmajfault 2\n",
		"memory.swap.current": "7\n",
		"memory.swap.max":     "max\n",
		"pids.current":        "3\n",
		"cpu.pressure":        "some avg10=1.50 avg60=0.25 avg300=0.00 total=42\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
	})
	got, err := new(Reader).Stats(Paths{"": dir})
	if err != nil {
		t.Fatal(err)
	}
	want := Stats{
		At: got.At, CPU: 1500000, Tasks: 3,
		Memory: MemoryStats{
			Usage: 1000, WorkingSet: 600, RSS: 300, Limit: 5000, MinorFaults: 10, MajorFaults: 2, InactiveFile: 400,
		},
		Swap:        &SwapStats{Usage: 7, Limit: NoLimit},
		CPUPressure: &Pressure{Some: Stall{Avg10: 1.5, Avg60: 0.25, Total: 42000}, Full: Stall{Total: 7000}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := new(Reader).Stats(Paths{"": filepath.Join(dir, "gone")}); !errors.Is(err, errs.NotFound) {
		t.Errorf("a cgroup that is gone: %v, want kind NotFound", err)
	}
}

func TestStatsV1(t *testing.T) {
	dir := t.TempDir()
	memory, cpu, pids := filepath.Join(dir, "m"), filepath.Join(dir, "c"), filepath.Join(dir, "p")
	write(t, cpu, map[string]string{"cpuacct.usage": "123\n"})
	write(t, pids, map[string]string{"pids.current": "2\n"})
	write(t, memory, map[string]string{
		"memory.usage_in_bytes":       "1000\n",
		"memory.memsw.usage_in_bytes": "1100\n",
		"memory.stat":                 "total_rss 300\ntotal_inactive_file 2000\ntotal_pgfault 12\ntotal_pgmajfault 2\nhierarchical_memory_limit 9223372036854771712\nhierarchical_memsw_limit 9223372036854771712\n",
	})
	got, err := new(Reader).Stats(Paths{"memory": memory, "cpuacct": cpu, "pids": pids})
	if err != nil {
		t.Fatal(err)
	}
	want := Stats{
		At: got.At, CPU: 123, Tasks: 2,
		Memory: MemoryStats{
			Usage: 1000, RSS: 300, Limit: NoLimit, MinorFaults: 10, MajorFaults: 2, InactiveFile: 2000,
		},
		Swap: &SwapStats{Usage: 100, Limit: NoLimit},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDetailsV2(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "pods", "one")
	write(t, dir, map[string]string{
		"cpu.stat":                 "usage_usec 9\nuser_usec 5\nsystem_usec 4\nnr_periods 10\nnr_throttled 3\nthrottled_usec 7\nnr_bursts 1\nburst_usec 2\n",
		"cpu.max":                  "50000 100000\n",
		"cpu.weight":               "100\n",
		"memory.peak":              "4096\n",
		"memory.events":            "low 0\nhigh 0\nmax 6\noom 1\noom_kill 2\n",
		"memory.max":               "1000\n",
		"memory.swap.max":          "500\n",
		"pids.max":                 "max\n",
		"io.stat":                  "7:999 rbytes=90 wbytes=80 rios=7 wios=6 dbytes=5 dios=4 cost.usage=1\nbad\nx:y rbytes=1\n",
		"hugetlb.2MB.current":      "2097152\n",
		"hugetlb.2MB.rsvd.current": "1\n",
		"cgroup.procs":             "12\n",
	})
	write(t, filepath.Join(dir, "exec"), map[string]string{"cgroup.procs": "13\n14\n"})
	tree := &Tree{V2: true, mounts: map[string]string{"": root}}
	paths := Paths{"": dir}
	if got := tree.PathOf(paths); got != "/pods/one" {
		t.Errorf("the cgroup is %q, want /pods/one", got)
	}
	got, err := paths.Details()
	if err != nil {
		t.Fatal(err)
	}
	want := Details{
		CPUUser: 5000, CPUSystem: 4000, Periods: 10, ThrottledPeriods: 3, Throttled: 7000,
		BurstPeriods: 1, Burst: 2000, CPUPeriod: 100000, CPUQuota: 50000, CPUShares: 2597,
		MemoryPeak: 4096, MemoryFailures: 6, OOMKills: 2, MemorySwapLimit: 1500, TasksLimit: NoLimit,
		HugePages: []HugePages{{Size: "2MB", Usage: 2097152}},
		Devices: []DeviceIO{{
			Major: 7, Minor: 999, ReadBytes: 90, WriteBytes: 80, Reads: 7, Writes: 6, DiscardBytes: 5, Discards: 4,
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int{12, 13, 14}, paths.Processes()); diff != "" {
		t.Errorf("processes (-want +got):\n%s", diff)
	}
}

func TestDetailsV1(t *testing.T) {
	root := t.TempDir()
	mounts := map[string]string{}
	for controller, files := range map[string]map[string]string{
		"cpuacct": {"cpuacct.usage_user": "5\n", "cpuacct.usage_sys": "4\n"},
		"cpu":     {"cpu.stat": "nr_periods 10\nnr_throttled 3\nthrottled_time 7\n", "cpu.cfs_period_us": "100000\n", "cpu.cfs_quota_us": "-1\n", "cpu.shares": "1024\n"},
		"memory":  {"memory.max_usage_in_bytes": "9\n", "memory.failcnt": "1\n", "memory.oom_control": "under_oom 0\noom_kill 3\n", "memory.stat": "hierarchical_memsw_limit 77\n", "memory.soft_limit_in_bytes": "9223372036854771712\n"},
		"pids":    {"pids.max": "100\n"},
		"blkio": {
			"blkio.throttle.io_service_bytes_recursive": "7:999 Read 90\n7:999 Write 80\n7:999 Total 170\nTotal 170\n",
			"blkio.throttle.io_serviced_recursive":      "7:999 Read 7\n",
		},
		"hugetlb": {"hugetlb.2MB.usage_in_bytes": "1\n", "hugetlb.2MB.max_usage_in_bytes": "2\n", "hugetlb.2MB.failcnt": "3\n"},
	} {
		mounts[controller] = filepath.Join(root, controller)
		write(t, filepath.Join(mounts[controller], "p"), files)
	}
	tree := &Tree{mounts: mounts}
	paths := tree.Paths("/p")
	if got := tree.PathOf(paths); got != "/p" {
		t.Errorf("the cgroup is %q, want /p", got)
	}
	got, err := paths.Details()
	if err != nil {
		t.Fatal(err)
	}
	want := Details{
		CPUUser: 5, CPUSystem: 4, Periods: 10, ThrottledPeriods: 3, Throttled: 7, CPUPeriod: 100000, CPUShares: 1024,
		MemoryPeak: 9, MemoryFailures: 1, OOMKills: 3, MemorySwapLimit: 77, TasksLimit: 100,
		HugePages: []HugePages{{Size: "2MB", Usage: 1, Peak: 2, Failures: 3}},
		Devices:   []DeviceIO{{Major: 7, Minor: 999, ReadBytes: 90, WriteBytes: 80, Reads: 7}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzStats(f *testing.F) {
	f.Add([]byte("usage_usec 1\nx"), []byte("some avg10=1 total=x\nfull\n"))
	f.Add([]byte("7:0 rbytes=1"), []byte("7:0 Read 3"))
	f.Fuzz(func(t *testing.T, stat, pressure []byte) {
		dir := t.TempDir()
		write(t, dir, map[string]string{
			"cpu.stat": string(stat), "memory.stat": string(stat), "memory.current": string(stat), "cpu.pressure": string(pressure),
			"io.stat": string(stat), "cpu.max": string(stat), "cpu.weight": string(pressure), "hugetlb.2MB.current": string(pressure),
			"blkio.throttle.io_service_bytes_recursive": string(pressure), "cgroup.procs": string(stat),
		})
		for _, tree := range []*Tree{{V2: true, mounts: map[string]string{"": dir}}, {mounts: map[string]string{"memory": dir, "cpu": dir, "blkio": dir}}} {
			paths := tree.Paths("/")
			_, err := new(Reader).Stats(paths)
			_, detailsErr := paths.Details()
			if err != nil || detailsErr != nil {
				t.Errorf("figures that make no sense: %v, %v", err, detailsErr)
			}
			paths.Processes()
		}
	})
}
