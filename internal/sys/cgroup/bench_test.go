package cgroup

import (
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkStats reads the figures of one cgroup from ordinary files of a usual size: it measures
// what the reader adds to the kernel's part.
func BenchmarkStats(b *testing.B) {
	dir := b.TempDir()
	pressure := "some avg10=1.50 avg60=0.25 avg300=0.00 total=42\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
	memory := ""
	for _, key := range []string{"anon", "file", "kernel", "file_mapped", "active_file", "inactive_file", "pgfault", "pgmajfault"} {
		memory += key + " 123456\n"
		for _, other := range []string{"slab", "shmem", "sock", "zswap", "workingset_refault"} {
			memory += other + "_" + key + " 123456789\n"
		}
	}
	for name, text := range map[string]string{
		"cpu.stat": "usage_usec 1500\nuser_usec 1000\nsystem_usec 500\n", "memory.current": "1000\n", "memory.max": "max\n",
		"memory.stat": memory, "memory.swap.current": "0\n", "memory.swap.max": "max\n", "pids.current": "3\n",
		"cpu.pressure": pressure, "memory.pressure": pressure, "io.pressure": pressure,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	paths := Paths{"": dir}
	var reader Reader
	b.ReportAllocs()
	for b.Loop() {
		if _, err := reader.Stats(paths); err != nil {
			b.Fatal(err)
		}
	}
}
