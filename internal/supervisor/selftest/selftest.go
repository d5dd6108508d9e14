// Package selftest checks whether a supervisor of this binary works on this host.
package selftest

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/berthrun/berth/internal/supervisor/server/logpump"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// pipeTimeout bounds the test of the log.
const pipeTimeout = 5 * time.Second

// Run reports whether this binary can do a supervisor's work on this host,
// before it takes the place of one that does.
func Run() error {
	if _, err := sysproc.BootID(); err != nil {
		return err
	}
	if _, err := ociruntime.ReadHost(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "berth-selftest-")
	if err != nil {
		return fmt.Errorf("cannot test: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := testPipe(dir); err != nil {
		return fmt.Errorf("self-test of the log failed: %w", err)
	}
	pidfd, err := sysproc.OpenPidfd(os.Getpid())
	if err != nil {
		return fmt.Errorf("self-test of pidfds failed: %w", err)
	}
	return pidfd.Close()
}

// testPipe moves a line through a pump into a log.
func testPipe(dir string) error {
	loop, err := logpump.NewLoop()
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.Background(), pipeTimeout)
	defer stop()
	ran := make(chan error, 1)
	go func() { ran <- loop.Run(ctx) }()
	reader, writer, err := sysfd.OutputPipe(sysfd.Owner{})
	if err != nil {
		return err
	}
	pump, err := loop.Open(ctx, logpump.Config{Dir: dir, LogDir: dir, LogPath: "log"}, reader, nil)
	if err != nil {
		return err
	}
	_, err = writer.WriteString("a line\n")
	writer.Close()
	if err != nil {
		return err
	}
	if err := pump.Drain(ctx); err != nil {
		return err
	}
	pump.Close()
	info, err := os.Stat(dir + "/log")
	if err != nil {
		return err
	}
	if info.Size() == 0 {
		return fmt.Errorf("log is empty")
	}
	stop()
	return <-ran
}
