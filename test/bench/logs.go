package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

// logRounds is how often each runtime writes the whole log.
const logRounds = 3

const (
	// logLine is a line of 127 bytes, without its newline.
	logLine = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde"
	// logPiece is the size in MiB of the file that a container writes several times. It fits into
	// /dev/shm.
	logPiece = 40
)

// logThroughput times a container that writes lines until its log is complete. In the first row two
// programs make the lines while they are timed. They take more CPU time than a fast log. In the other
// rows the container has made them before.
func logThroughput(ctx context.Context, o options, peers []*peer, r *registry) (*table, error) {
	t := &table{Title: fmt.Sprintf("Log of %d MiB in lines of 128 bytes (median of %d)", o.logMiB, logRounds)}
	for round := range logRounds {
		for _, p := range peers {
			took, err := writeLog(ctx, o, p, r, fmt.Sprintf("log-%d", round))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			t.rate(p.name, "log", "MiB/s", float64(o.logMiB)/took.Seconds())
			for _, c := range []struct{ name, line string }{
				{"log, lines made before", logLine},
				{"log, lines of 16 KiB made before", strings.Repeat(logLine+"+", 128)[1:]},
			} {
				rate, err := floodLog(ctx, o, p, r, fmt.Sprintf("log-%d-%d", len(c.line), round), c.line)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", p.name, err)
				}
				t.rate(p.name, c.name, "MiB/s", rate)
			}
		}
	}
	return t, nil
}

func writeLog(ctx context.Context, o options, p *peer, r *registry, name string) (time.Duration, error) {
	script := fmt.Sprintf("/bin/busybox yes %s | /bin/busybox head -c %d", logLine, o.logMiB<<20)
	begin := time.Now()
	made, _, err := p.up(ctx, r.image("bench:1"), name, "/bin/busybox", "sh", "-c", script)
	if err != nil {
		return 0, err
	}
	if err := p.awaitExit(ctx, made); err != nil {
		return 0, err
	}
	file := p.logOf(name)
	if err := awaitSize(ctx, file, int64(o.logMiB)<<20, 10*time.Millisecond); err != nil {
		return 0, err
	}
	took := time.Since(begin)
	if err := p.down(ctx, made); err != nil {
		return 0, err
	}
	// cri-dockerd has removed its link with the container.
	return took, errs.IgnoreNotExist(os.Remove(file))
}

// floodLog returns how many MiB per second of lines reach the log, from the moment when the first does.
func floodLog(ctx context.Context, o options, p *peer, r *registry, name, line string) (float64, error) {
	times := (o.logMiB + logPiece - 1) / logPiece
	const script = "/bin/busybox yes $1 | /bin/busybox head -c $2 >/dev/shm/lines; " +
		"for i in $(/bin/busybox seq $3); do /bin/busybox cat /dev/shm/lines; done"
	made, _, err := p.up(ctx, r.image("bench:1"), name, "/bin/busybox", "sh", "-c", script, "sh",
		line, strconv.Itoa(logPiece<<20), strconv.Itoa(times))
	if err != nil {
		return 0, err
	}
	file := p.logOf(name)
	if err := awaitSize(ctx, file, 1, time.Millisecond); err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := p.awaitExit(ctx, made); err != nil {
		return 0, err
	}
	if err := awaitSize(ctx, file, int64(times*logPiece)<<20, time.Millisecond); err != nil {
		return 0, err
	}
	took := time.Since(begin)
	if err := p.down(ctx, made); err != nil {
		return 0, err
	}
	return float64(times*logPiece) / took.Seconds(), errs.IgnoreNotExist(os.Remove(file))
}

// logOf returns the path of the log of a sandbox's container.
func (p *peer) logOf(sandbox string) string { return filepath.Join(p.logs, sandbox, "c", "0.log") }

// awaitSize waits until a log holds all that was written. Some runtimes report the end of a
// container before its log is complete.
func awaitSize(ctx context.Context, file string, want int64, pause time.Duration) error {
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
		if sleep(ctx, pause) != nil {
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
