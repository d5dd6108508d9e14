package checkpoint

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
)

// dump is one run of `criu dump`.
type dump struct {
	dir, path string
	facts     Facts
}

// The files in the directory of a dump.
const (
	imagesName = "images"
	// logName is in the archive as well.
	logName = "dump.log"
	// scriptName is run by CRIU at stages of its work. It makes dumpedName when all is written and the processes
	// are still stopped, and waits for goOnName. It fails when holdName is gone: removal works on a full disk, too.
	scriptName  = "script"
	dumpedName  = "dumped"
	goOnName    = "continue"
	holdName    = "hold"
	stdioName   = "descriptors.json"
	statsName   = "stats-dump"
	pollForDump = 5 * time.Millisecond
	// timeToUndo is how long CRIU has to undo what it has done to the processes before it is killed.
	timeToUndo = 3 * time.Second
)

// script ends with an error when CRIU has ended, or has to undo the dump.
const script = `#!/bin/sh
[ "$CRTOOLS_SCRIPT_ACTION" = post-dump ] || exit 0
dir=${0%/*}
: > "$dir/` + dumpedName + `" || exit 1
while [ ! -e "$dir/` + goOnName + `" ]; do
	[ -e "$dir/` + holdName + `" ] || exit 1
	kill -0 "$PPID" 2> /dev/null || exit 1
	sleep 0.01
done
`

func (d *dump) at(name string) string { return filepath.Join(d.dir, name) }

func (d *dump) make() error {
	if err := os.MkdirAll(d.at(imagesName), 0o700); err != nil {
		return fmt.Errorf("cannot make the directory of a checkpoint: %w", errs.OfDisk(err))
	}
	if err := os.WriteFile(d.at(scriptName), []byte(script), 0o700); err != nil { //nolint:gosec // it is a program
		return fmt.Errorf("cannot write the script of a checkpoint: %w", errs.OfDisk(err))
	}
	if err := os.WriteFile(d.at(holdName), nil, 0o600); err != nil {
		return fmt.Errorf("cannot write the files of a checkpoint: %w", errs.OfDisk(err))
	}
	return nil
}

// The names of what is outside of a dump. runc knows them when it restores.
const (
	networkKey = "extRootNetNS"
	pidKey     = "extRootPidNS"
)

// arguments are those of CRIU. Never --tcp-established: CRIU would put the container's established connections into a
// state for their repair, in which they stay when CRIU is killed. Without it, CRIU refuses a container that has some.
func (d *dump) arguments(c *Container) ([]string, error) {
	args := []string{
		"dump", "--tree", strconv.Itoa(c.Pid), "--images-dir", d.at(imagesName), "--work-dir", d.dir, "--log-file", logName, "-v3",
		"--leave-running", "--action-script", d.at(scriptName), "--manage-cgroups=soft", "--file-locks", "--ext-unix-sk",
	}
	if d.facts.KeepsNetwork {
		args = append(args, "--network-lock", "skip")
	}
	for _, ns := range c.Spec.Linux.Namespaces {
		if ns.Type == specs.NetworkNamespace && !d.facts.KeepsNetwork {
			return nil, fmt.Errorf("CRIU %s would change the firewall of its pod (its --network-lock has no skip, which 3.19 added): %w", d.facts.Version, errs.Unsupported)
		}
		key := map[specs.LinuxNamespaceType]string{specs.NetworkNamespace: networkKey, specs.PIDNamespace: pidKey}[ns.Type]
		if key == "" || ns.Path == "" {
			continue
		}
		inode, err := inodeOf(ns.Path)
		if err != nil {
			return nil, fmt.Errorf("cannot find a namespace of its pod: %w", err)
		}
		name := map[specs.LinuxNamespaceType]string{specs.NetworkNamespace: "net", specs.PIDNamespace: "pid"}[ns.Type]
		args = append(args, "--external", fmt.Sprintf("%s[%d]:%s", name, inode, key))
	}
	points, err := external(c.Pid, c.Spec)
	if err != nil {
		return nil, err
	}
	for _, point := range points {
		args = append(args, "--external", fmt.Sprintf("mnt[%s]:%s", point, point))
	}
	return args, d.recordStdio(c.Pid)
}

func inodeOf(path string) (uint64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Sys().(*syscall.Stat_t).Ino, nil
}

// recordStdio writes what descriptors 0 to 2 of the init are, as runc does.
func (d *dump) recordStdio(pid int) error {
	var names [3]string
	for fd := range names {
		var err error
		if names[fd], err = os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot read the descriptors of its init: %w", err)
		}
	}
	text, err := json.Marshal(names)
	if err == nil {
		err = os.WriteFile(filepath.Join(d.at(imagesName), stdioName), text, 0o600)
	}
	return errs.OfDisk(err)
}

// run runs CRIU, and stopped while the processes are stopped. When either fails, and when ctx ends, the processes go on,
// and run returns an error.
func (d *dump) run(ctx context.Context, args []string, stopped func() error) error {
	inner, kill := context.WithCancel(context.WithoutCancel(ctx))
	defer kill()
	type ended struct {
		out []byte
		err error
	}
	result := make(chan ended, 1)
	go func() {
		var e ended
		// A panic here would end the daemon.
		e.err = errs.Guard("checkpoint by CRIU", func() (err error) {
			e.out, err = run(inner, d.dir, d.path, args...)
			return err
		})
		result <- e
	}()
	ticker := time.NewTicker(pollForDump)
	defer ticker.Stop()
	var failure error
	var late <-chan time.Time
	// fail lets the script fail, now or when CRIU runs it: CRIU then undoes what it has done to the processes.
	fail := func(err error) {
		failure, late = err, time.After(timeToUndo)
		if os.Remove(d.at(holdName)) != nil {
			kill()
		}
	}
	over := ctx.Done()
	for done := false; ; {
		select {
		case e := <-result:
			switch {
			case failure != nil:
				return failure
			case e.err != nil:
				return fmt.Errorf("CRIU cannot write its processes: %s: %w", cmp.Or(d.cause(), Reason(e.out), e.err.Error()), errs.Unsupported)
			case !done:
				return errors.New("CRIU has ended without its script")
			}
			return nil
		case <-over:
			over = nil
			if failure == nil {
				fail(fmt.Errorf("CRIU was stopped, and the container goes on: %w", context.Cause(ctx)))
			}
		case <-late:
			kill()
		case <-ticker.C:
		}
		if _, err := os.Lstat(d.at(dumpedName)); done || failure != nil || err != nil {
			continue
		}
		err := stopped()
		if err == nil {
			err = os.WriteFile(d.at(goOnName), nil, 0o600)
		}
		if done = err == nil; !done {
			fail(errs.OfDisk(err))
		}
	}
}

// maxLog bounds what is read of CRIU's log for an error.
const maxLog = 8 << 20

// cause returns the first errors in CRIU's log.
func (d *dump) cause() string {
	f, err := os.Open(d.at(logName))
	if err != nil {
		return ""
	}
	defer f.Close()
	var log bytes.Buffer
	_, _ = io.Copy(&log, io.LimitReader(f, maxLog)) // what came before an error is searched
	return Reason(log.Bytes())
}
