package logpump

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

const writerEnv = "BERTH_LOGPUMP_WRITER"

// benchBytes is written in one round.
const benchBytes = 200 << 20

// BenchmarkThroughput: another process writes lines as fast as the pump reads them.
// BERTH_BENCH_DIR is the directory of the log.
func BenchmarkThroughput(b *testing.B) {
	for _, c := range []struct {
		name       string
		line, size int
	}{
		{"128B-lines/line-per-write", 128, 128},
		{"128B-lines/4KiB-writes", 128, 4 << 10},
		{"128B-lines/64KiB-writes", 128, 64 << 10},
		{"8KiB-lines/8KiB-writes", 8 << 10, 8 << 10},
		{"16KiB-lines/64KiB-writes", 16 << 10, 64 << 10},
	} {
		b.Run(c.name, func(b *testing.B) {
			var before, after syscall.Rusage
			b.SetBytes(benchBytes)
			for b.Loop() {
				b.StopTimer()
				run := newBench(b)
				if dir := os.Getenv("BERTH_BENCH_DIR"); dir != "" {
					logDir, err := os.MkdirTemp(dir, "berth-logpump-")
					must(b, err)
					b.Cleanup(func() { os.RemoveAll(logDir) })
					run.cfg.LogDir = logDir
				}
				p := run.open()
				syscall.Getrusage(syscall.RUSAGE_SELF, &before)
				b.StartTimer()
				writer := exec.Command(os.Args[0])
				writer.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d", writerEnv, c.line, c.size))
				writer.Stdout = run.stdout
				must(b, writer.Run())
				run.drain(p)
				b.StopTimer()
				syscall.Getrusage(syscall.RUSAGE_SELF, &after)
				b.ReportMetric((cpu(&after)-cpu(&before)).Seconds()*100/200, "cpu-s/100MiB")
				st, err := os.Stat(run.path("0.log"))
				must(b, err)
				if want := int64(benchBytes / c.line * (c.line + crilog.Overhead - 1)); st.Size() != want {
					b.Fatalf("log has %d bytes, want %d", st.Size(), want)
				}
				p.Close()
				must(b, os.Remove(run.path("0.log")))
				b.StartTimer()
			}
		})
	}
}

func cpu(r *syscall.Rusage) time.Duration {
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// runWriter is the container of BenchmarkThroughput.
func runWriter(sizes string) error {
	var lineSize, n int
	if _, err := fmt.Sscan(sizes, &lineSize, &n); err != nil {
		return err
	}
	line := append(bytes.Repeat([]byte("x"), lineSize-1), '\n')
	block := bytes.Repeat(line, n/len(line))
	for range benchBytes / n {
		// A signal can cause a short write.
		for rest := block; len(rest) > 0; {
			n, err := syscall.Write(1, rest)
			if err != nil && !errors.Is(err, syscall.EINTR) {
				return err
			}
			rest = rest[max(n, 0):]
		}
	}
	return nil
}

// BenchmarkIdle measures the cost of a container that writes nothing.
func BenchmarkIdle(b *testing.B) {
	loop := runLoop(b)
	dir, logDir := stageDir(b), b.TempDir()
	const containers = 500
	for b.Loop() {
		b.StopTimer()
		before := heap()
		goroutines := runtime.NumGoroutine()
		var pumps []*Pump
		for i := range containers {
			name := strconv.Itoa(i)
			must(b, os.MkdirAll(dir+"/"+name, 0o700))
			out, container, err := sysfd.OutputPipe(sysfd.Owner{})
			must(b, err)
			defer container.Close()
			errOut, container, err := sysfd.OutputPipe(sysfd.Owner{})
			must(b, err)
			defer container.Close()
			b.StartTimer()
			p, err := loop.Open(b.Context(), Config{Dir: dir + "/" + name, LogDir: logDir, LogPath: name + ".log"}, out, errOut)
			b.StopTimer()
			must(b, err)
			_, err = container.WriteString("hello\n")
			must(b, err)
			must(b, p.Drain(b.Context()))
			pumps = append(pumps, p)
		}
		b.ReportMetric(float64(heap()-before)/containers, "heap-B/container")
		b.ReportMetric(float64(runtime.NumGoroutine()-goroutines), "goroutines")
		for _, p := range pumps {
			p.Abandon()
		}
		b.StartTimer()
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) + int64(m.StackInuse)
}
