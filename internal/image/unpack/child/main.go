package child

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/berthrun/berth/internal/errs"
)

// heapLimit makes Go's collector work harder long before the cgroup's limit.
const heapLimit = MemoryLimit / 2

// Main is the child: args is one Job as JSON, standard input the layer, standard
// output takes the answer. It returns the exit code.
func Main(args []string) int {
	result, err := work(args)
	if err := write(os.Stdout, result, err); err != nil {
		return 1
	}
	return 0
}

func work(args []string) (Result, error) {
	debug.SetMemoryLimit(heapLimit)
	var job Job
	if len(args) != 1 {
		return Result{}, fmt.Errorf("unpack helper: want one job, got %d arguments: %w", len(args), errs.Invalid)
	}
	if err := json.Unmarshal([]byte(args[0]), &job); err != nil {
		return Result{}, fmt.Errorf("cannot read the job of the unpack helper: %w", err)
	}
	if err := job.readSecret(); err != nil {
		return Result{}, err
	}
	if err := enter(job); err != nil {
		return Result{}, err
	}
	lower := ""
	if job.Below {
		lower = "/" + LowerName
	}
	p := &progress{}
	result, err := p.within(ownCPU, func() (Result, error) { return apply(context.Background(), input(), "/"+UpperName, lower, job, p) })
	if errors.Is(err, errNeedsLower) {
		return Result{NeedsLower: true}, nil
	}
	if errors.Is(err, errNeedsFiles) {
		return Result{NeedsFiles: true}, nil
	}
	return result, kindOf(err)
}

// shortened drops the middle of a text with the names that a layer has chosen: errors become events of pods.
func shortened(text string) string {
	const head, tail = 600, 300
	if len(text) <= head+tail {
		return text
	}
	return strings.ToValidUTF8(text[:head], "") + " [...] " + strings.ToValidUTF8(text[len(text)-tail:], "")
}

// enter leaves what the child has of the host: its working directory, and the cgroup of the daemon. It runs before the first byte
// of the layer is read. All else is done before the child starts, by package confine.
func enter(job Job) error {
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("cannot enter the root of the unpack helper: %w", err)
	}
	if !job.Cgroup {
		return nil
	}
	cgroup := os.NewFile(cgroupFile, "cgroup.procs")
	if _, err := cgroup.WriteString("0"); err != nil {
		return fmt.Errorf("cannot enter the cgroup of the unpack helper: %w", err)
	}
	return cgroup.Close()
}

// kindOf returns the kind of an error: Invalid for a fault of the layer, unless the host's disk
// caused it.
func kindOf(err error) error {
	if err == nil || errs.Kind(err) != nil {
		return err
	}
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		if errors.Is(err, full) {
			return fmt.Errorf("%w: %w", err, errs.Exhausted)
		}
	}
	// Directories have one name.
	var link *os.LinkError
	if errors.As(err, &link) && errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("%w: %w", err, errs.Invalid)
	}
	for _, host := range []error{syscall.EIO, syscall.EROFS, syscall.ENOMEM, syscall.EMFILE, fs.ErrPermission} {
		if errors.Is(err, host) {
			return err
		}
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("the layer is truncated: %w", err)
	}
	return fmt.Errorf("%w: %w", err, errs.Invalid)
}
