// Package dbcheck reads a whole bbolt database before the store uses it.
//
// bbolt maps the file and follows its pages. A damaged page leads it out of the map, into a
// panic of a goroutine that no caller can recover, or into an endless loop. So the check runs
// in a child with its own limits. Any end of the child except success means damage, unless the
// child waited for the disk.
package dbcheck

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/helper/program"
)

// Arg is the first argument of a child, which calls Main.
const Arg = "check-database"

// ErrDamaged is a database that cannot be read.
var ErrDamaged = errors.New("the database is damaged")

const (
	// checkTimeout bounds a check. A database of a node has a few megabytes.
	checkTimeout = 2 * time.Minute
	// lockTimeout is how long another process may have the file.
	lockTimeout = 2 * time.Second

	maxStack  = 64 << 20
	maxMemory = 1 << 30
	maxNoise  = 16 << 10

	exitDamaged = 3
	exitLocked  = 4
)

// Check lets a child read the database at path; helper is the program that calls Main. The
// error is ErrDamaged, or of kind Unavailable when another process has the database, or the
// reason why there was no check. Nil for a missing file.
func Check(ctx context.Context, helper program.Program, path string) error {
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return check(ctx, helper, path, checkTimeout)
}

// check ends the child after timeout. A child that has used the processor meanwhile is in an
// endless loop. A child that has waited reads from a slow disk; the database is not at fault.
func check(parent context.Context, helper program.Program, path string, timeout time.Duration) error {
	exe, args, release, err := helper.Use()
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(parent, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe)
	cmd.Args = append(args, Arg, path)
	cmd.Env = []string{}
	noise := tail{}
	cmd.Stderr = &noise
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case parent.Err() != nil:
		return context.Cause(parent)
	case ctx.Err() != nil && cmd.ProcessState != nil && cmd.ProcessState.UserTime() < timeout/10:
		return fmt.Errorf("cannot read %s whole within %s: the disk is slow", path, timeout)
	case ctx.Err() != nil:
		return fmt.Errorf("%s: reading it whole took more than %s: %w", path, timeout, ErrDamaged)
	case !errors.As(err, &exit):
		return fmt.Errorf("cannot start the check of %s: %w", path, err)
	case exit.ExitCode() == exitLocked:
		return fmt.Errorf("another process has %s: %w", path, errs.Unavailable)
	}
	return fmt.Errorf("%s: %s: %w", path, noise.first(exit), ErrDamaged)
}

// tail keeps the beginning of a child's output.
type tail struct{ bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	if room := maxNoise - t.Len(); room > 0 {
		t.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// first is the first line, which says what is wrong, or how the child ended.
func (t *tail) first(exit *exec.ExitError) string {
	line, _, _ := strings.Cut(strings.TrimSpace(t.String()), "\n")
	if line == "" {
		return exit.String()
	}
	return line
}

// Main is the child: args is one path. It returns the exit code.
func Main(args []string) int {
	if len(args) != 1 {
		fmt.Fprintln(os.Stderr, "want the path of a database")
		return 2
	}
	debug.SetMaxStack(maxStack)
	// A page with a wrong count must not use all memory of the host.
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: maxMemory, Max: maxMemory}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	err := read(args[0])
	switch {
	case err == nil:
		return 0
	case errors.Is(err, bolterrors.ErrTimeout):
		return exitLocked
	}
	fmt.Fprintln(os.Stderr, err)
	return exitDamaged
}

// read opens the database for reading, follows every page and looks at every key.
func read(path string) (err error) {
	fi, err := os.Stat(path)
	if err != nil {
		return err
	}
	if fi.Size() == 0 {
		return errors.New("the file is empty")
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, PreLoadFreelist: true, Timeout: lockTimeout})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return db.View(func(tx *bbolt.Tx) error {
		if tx.Size() > fi.Size() {
			return fmt.Errorf("the file has %d bytes, its pages take %d", fi.Size(), tx.Size())
		}
		var first error
		for err := range tx.Check() { // to its end, which lets its goroutine go
			if first == nil {
				first = err
			}
		}
		if first == nil {
			first = checkLayout(path, tx)
		}
		if first != nil {
			return first
		}
		return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error { return walk(b) })
	})
}

func walk(b *bbolt.Bucket) error {
	return b.ForEach(func(k, v []byte) error {
		if v != nil {
			return nil
		}
		below := b.Bucket(k)
		if below == nil {
			return fmt.Errorf("bucket %x has no page", k)
		}
		return walk(below)
	})
}
