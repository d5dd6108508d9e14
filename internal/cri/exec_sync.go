package cri

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
)

// maxExecOutput is how much of stdout, and of stderr, an ExecSync keeps. CRI names
// this size; ExecSync reads and drops the rest.
const maxExecOutput = 16 << 20

// maxExecAnswer is how much of both a response has: a kubelet refuses messages longer
// than 16 MiB, and would get an error instead of the exit code.
const maxExecAnswer = 16<<20 - 1<<10

// ExecSync implements runtimeapi.RuntimeServiceServer. A command that exceeds
// its timeout is killed, and the call returns DeadlineExceeded. The kubelet distinguishes by it a
// probe that timed out from a probe that could not run.
func (s *Server) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	if err := checkContainerID(req); err != nil {
		return nil, fmt.Errorf("cannot exec: %w", err)
	}
	if err := checkCommand(req.GetCmd()); err != nil {
		return nil, fmt.Errorf("cannot exec: %w", err)
	}
	if req.GetTimeout() < 0 {
		return nil, fmt.Errorf("cannot exec: %w", invalid("timeout %d is negative", req.GetTimeout()))
	}
	limit := time.Duration(min(req.GetTimeout(), math.MaxInt32)) * time.Second
	execCtx := ctx
	if limit > 0 {
		var cancel context.CancelFunc
		execCtx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	var stdout, stderr cappedBuffer
	code, err := s.opts.Sessions.Exec(execCtx, &engine.ExecSpec{
		ContainerID: req.GetContainerId(),
		Command:     req.GetCmd(),
		Stdout:      &stdout,
		Stderr:      &stderr,
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, &execTimeoutError{command: req.GetCmd(), limit: limit}
	}
	if errors.Is(err, errs.Invalid) {
		return nil, fmt.Errorf("cmd: %w", err)
	}
	if err != nil {
		return nil, err
	}
	answer := &runtimeapi.ExecSyncResponse{ExitCode: code}
	answer.Stdout, answer.Stderr = fitAnswer(stdout.buf, stderr.buf)
	if dropped := stdout.size + stderr.size - int64(len(answer.Stdout)+len(answer.Stderr)); dropped > 0 {
		s.log.WarnContext(ctx, "output of a command is longer than an answer can be, and its end is dropped",
			"container", req.GetContainerId(), "command", req.GetCmd()[0], "dropped", dropped,
			"stdout", len(answer.Stdout), "stderr", len(answer.Stderr))
	}
	return answer, nil
}

// execTimeoutError is the error of a command that did not end within its timeout. It has kind
// Deadline, and its text is the same for all engines: each describes in other words how its call
// ended. Clients look for containerd's words (timeout 1s exceeded) and for those of Go's own error.
type execTimeoutError struct {
	command []string
	limit   time.Duration
}

func (e *execTimeoutError) Error() string {
	return fmt.Sprintf("command %q timed out: timeout %s exceeded: %s", e.command, e.limit, context.DeadlineExceeded)
}

func (e *execTimeoutError) Unwrap() []error { return []error{errs.Deadline, context.DeadlineExceeded} }

// fitAnswer truncates outputs that are too long for one answer. Each output keeps a share.
func fitAnswer(stdout, stderr []byte) (out, err []byte) {
	const half = maxExecAnswer / 2
	err = stderr[:min(len(stderr), max(half, maxExecAnswer-len(stdout)))]
	return stdout[:min(len(stdout), maxExecAnswer-len(err))], err
}

// checkCommand refuses a command that the kernel would truncate.
func checkCommand(cmd []string) error {
	if len(cmd) == 0 {
		return invalid("cmd is empty")
	}
	if cmd[0] == "" {
		return invalid("cmd[0]: no command specified")
	}
	for i, word := range cmd {
		if strings.ContainsRune(word, 0) {
			return invalid("cmd[%d] %q contains a NUL", i, word)
		}
	}
	return nil
}

// cappedBuffer keeps the first maxExecOutput bytes and counts the rest.
type cappedBuffer struct {
	buf  []byte
	size int64
}

// Write implements io.Writer.
func (b *cappedBuffer) Write(p []byte) (int, error) {
	b.size += int64(len(p))
	room := maxExecOutput - len(b.buf)
	b.buf = append(b.buf, p[:min(room, len(p))]...)
	return len(p), nil
}
