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
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/capability"
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
	// scriptName is run by CRIU with the names of actions. If the action has a file waitPrefix, the script makes its file
	// reachedPrefix, and waits for its file goOnPrefix. It fails when holdName is gone: removal works on a full disk, too.
	scriptName    = "script"
	waitPrefix    = "wait-"
	reachedPrefix = "reached-"
	goOnPrefix    = "continue-"
	holdName      = "hold"
	stdioName     = "descriptors.json"
	statsName     = "stats-dump"
	pollForDump   = 5 * time.Millisecond
	// timeToUndo is how long CRIU has to undo what it has done to the processes before it is killed.
	timeToUndo = 3 * time.Second
)

// script ends with an error when CRIU has ended, or has to undo the dump.
const script = `#!/bin/sh
dir=${0%/*}
[ -e "$dir/` + waitPrefix + `$CRTOOLS_SCRIPT_ACTION" ] || exit 0
: > "$dir/` + reachedPrefix + `$CRTOOLS_SCRIPT_ACTION" || exit 1
while [ ! -e "$dir/` + goOnPrefix + `$CRTOOLS_SCRIPT_ACTION" ]; do
	[ -e "$dir/` + holdName + `" ] || exit 1
	kill -0 "$PPID" 2> /dev/null || exit 1
	sleep 0.01
done
`

// action is what is done while CRIU waits at an action of its script.
type action struct {
	name string
	do   func() error
}

const (
	// afterStop is CRIU's action once it has stopped all processes, and before it reads anything of them. Processes in the
	// network of the host do not have it.
	afterStop = "network-lock"
	// afterDump is its action once all is written. The processes are still stopped.
	afterDump = "post-dump"
)

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

// run runs CRIU, and does each action while CRIU waits for it, in their order. When one fails, and when ctx ends, the
// processes go on, and run returns an error. It returns when CRIU has ended.
func (d *dump) run(ctx context.Context, args []string, actions ...action) error {
	for _, a := range actions {
		if err := os.WriteFile(d.at(waitPrefix+a.name), nil, 0o600); err != nil {
			return fmt.Errorf("cannot write the files of a checkpoint: %w", errs.OfDisk(err))
		}
	}
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
	for {
		select {
		case e := <-result:
			switch {
			case failure != nil:
				return failure
			case e.err != nil:
				reason := cmp.Or(d.cause(), Reason(e.out))
				return fmt.Errorf("CRIU cannot write its processes: %s%s: %w", cmp.Or(reason, e.err.Error()), lacking(reason, hasSysResource()), errs.State)
			case len(actions) > 0:
				return fmt.Errorf("CRIU has ended without its script (%s)", actions[0].name)
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
		if failure != nil || len(actions) == 0 {
			continue
		}
		if _, err := os.Lstat(d.at(reachedPrefix + actions[0].name)); err != nil {
			continue
		}
		err := actions[0].do()
		if err == nil {
			err = os.WriteFile(d.at(goOnPrefix+actions[0].name), nil, 0o600)
		}
		if err != nil {
			fail(errs.OfDisk(err))
			continue
		}
		actions = actions[1:]
	}
}

// lacking adds to a reason of CRIU's which capability berth lacks: the log of CRIU does not say that.
func lacking(reason string, sysResource bool) string {
	if sysResource || !strings.Contains(reason, "Can't get rlimit") {
		return ""
	}
	return " (berth has no CAP_SYS_RESOURCE here, which CRIU needs for processes of users other than root)"
}

// hasSysResource reports whether a program that this process starts has CAP_SYS_RESOURCE.
func hasSysResource() bool {
	caps, err := capability.NewPid2(0)
	if err == nil {
		err = caps.Load()
	}
	return err != nil || caps.Get(capability.EFFECTIVE, capability.CAP_SYS_RESOURCE)
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
