package pageserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/finding"
)

// Doctor returns an examination by `berth doctor` of the berth on a socket. It is a process of its own: what hangs ends
// with it, and what it reads does not stay in the daemon's memory. It has the daemon's rights, and repairs nothing.
func Doctor(socket string) func(ctx context.Context) ([]finding.Finding, error) {
	return func(ctx context.Context) ([]finding.Finding, error) {
		// This is the daemon's own program also if an upgrade has replaced its file.
		cmd := exec.CommandContext(ctx, "/proc/self/exe", "doctor", "--endpoint", "unix://"+socket, "--output", "json")
		cmd.Args[0] = "berth"
		cmd.WaitDelay = time.Second
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("`berth doctor` did not end in time: %w", context.Cause(ctx))
		}
		var found []finding.Finding
		if json.Unmarshal(stdout.Bytes(), &found) == nil {
			return found, nil // the exit code is 1 if there is a problem
		}
		if said := strings.TrimSpace(stderr.String()); said != "" {
			err = errors.Join(err, errors.New(said))
		}
		return nil, fmt.Errorf("`berth doctor` has no result: %w", err)
	}
}
