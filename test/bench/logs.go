package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

// logRounds is how often each runtime writes the whole log.
const logRounds = 3

// logThroughput times a container that writes 128-byte lines until its log is complete.
func logThroughput(ctx context.Context, o options, peers []*peer, r *registry) (*table, error) {
	t := &table{Title: fmt.Sprintf("Log of %d MiB in lines of 128 bytes (median of %d)", o.logMiB, logRounds)}
	for round := range logRounds {
		for _, p := range peers {
			took, err := writeLog(ctx, o, p, r, fmt.Sprintf("log-%d", round))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			t.rate(p.name, "log", "MiB/s", float64(o.logMiB)/took.Seconds())
		}
	}
	return t, nil
}

func writeLog(ctx context.Context, o options, p *peer, r *registry, name string) (time.Duration, error) {
	line := "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde"
	script := fmt.Sprintf("/bin/busybox yes %s | /bin/busybox head -c %d", line, o.logMiB<<20)
	begin := time.Now()
	made, _, err := p.up(ctx, r.image("bench:1"), name, "/bin/busybox", "sh", "-c", script)
	if err != nil {
		return 0, err
	}
	if err := p.awaitExit(ctx, made); err != nil {
		return 0, err
	}
	file := filepath.Join(p.logs, name, "c", "0.log")
	if err := awaitSize(ctx, file, int64(o.logMiB)<<20); err != nil {
		return 0, err
	}
	took := time.Since(begin)
	if err := p.down(ctx, made); err != nil {
		return 0, err
	}
	// cri-dockerd has removed its link with the container.
	return took, errs.IgnoreNotExist(os.Remove(file))
}

// awaitSize waits until a log holds all that was written. Some runtimes report the end of a
// container before its log is complete.
func awaitSize(ctx context.Context, file string, want int64) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		if info.Size() >= want {
			return nil
		}
		if sleep(ctx, 10*time.Millisecond) != nil {
			return fmt.Errorf("the log has %d bytes, want more than %d", info.Size(), want)
		}
	}
}

func (p *peer) awaitExit(ctx context.Context, d pod) error {
	for {
		got, err := p.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: d.container})
		if err != nil {
			return err
		}
		if got.Status.State == runtimeapi.ContainerState_CONTAINER_EXITED {
			if got.Status.ExitCode != 0 {
				return fmt.Errorf("the container ended with code %d", got.Status.ExitCode)
			}
			return nil
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}
