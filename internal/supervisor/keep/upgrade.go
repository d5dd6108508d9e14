package keep

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// upgrade is a request to replace the supervisor by the binary on disk:
//
//	testing  the binary's self-test runs (pid != 0); the supervisor goes on
//	stopping the self-test passed, the supervisor got a SIGTERM (pid == 0)
//
// A self-test that fails, or takes too long, ends the request and nothing else.
type upgrade struct {
	pid     int
	output  *os.File
	timeout <-chan time.Time
	// report gets the result of the self-test, before the supervisor gets its SIGTERM.
	report func(error)
}

const selfTestTimeout = 30 * time.Second

// deadline fires when the self-test takes too long.
func (u *upgrade) deadline() <-chan time.Time {
	if u == nil {
		return nil
	}
	return u.timeout
}

func (u *upgrade) replacing() bool { return u != nil && u.pid == 0 }

// beginUpgrade starts the self-test. report may be nil.
func (k *keeper) beginUpgrade(report func(error)) {
	if report == nil {
		report = func(error) {}
	}
	if k.upgrade != nil || k.stopping {
		report(fmt.Errorf("keeper that upgrades or stops already: %w", errs.State))
		return
	}
	k.upgrade = &upgrade{report: report}
	if k.opts.SelfTest == nil {
		k.replace()
		return
	}
	if err := k.upgrade.test(k.opts.Binary, k.opts.SelfTest); err != nil {
		k.finishUpgrade(err)
	}
}

// test runs the binary's self-test, with its output into a file in memory.
func (u *upgrade) test(binary string, args []string) error {
	output, err := sysfd.NewMemfd("selftest")
	if err != nil {
		return err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		output.Close()
		return fmt.Errorf("cannot start the self-test: %w", err)
	}
	defer null.Close()
	pid, err := syscall.ForkExec(binary, append([]string{binary}, args...), &syscall.ProcAttr{
		Env:   cleanEnvironment(),
		Files: []uintptr{null.Fd(), output.Fd(), output.Fd()},
	})
	if err != nil {
		output.Close()
		return fmt.Errorf("cannot start the self-test of %s: %w", binary, err)
	}
	u.pid, u.output, u.timeout = pid, output, time.After(selfTestTimeout)
	return nil
}

// selfTested continues an upgrade after the end of the self-test.
func (k *keeper) selfTested(status syscall.WaitStatus) {
	u := k.upgrade
	printed := u.outputTail()
	u.pid, u.timeout = 0, nil
	if !status.Exited() || status.ExitStatus() != 0 {
		k.finishUpgrade(fmt.Errorf("cannot upgrade the supervisor: the self-test of %s failed (%s): %s", k.opts.Binary, describe(status), printed))
		return
	}
	if k.stopping {
		k.finishUpgrade(fmt.Errorf("keeper that stops: %w", errs.State))
		return
	}
	k.replace()
}

// replace stops the running supervisor; childEnded starts the next one.
func (k *keeper) replace() {
	k.upgrade.report(nil)
	k.upgrade.report = func(error) {}
	k.log.Info("replacing the supervisor", "binary", k.opts.Binary)
	if k.child != nil {
		k.terminateChild()
		return
	}
	k.finishUpgrade(nil)
	k.restart = nil
	k.again(0)
}

// abandonUpgrade ends a self-test that runs; selfTested follows and reports it.
func (k *keeper) abandonUpgrade() {
	if k.upgrade == nil || k.upgrade.pid == 0 {
		return
	}
	k.upgrade.timeout = nil
	if err := syscall.Kill(k.upgrade.pid, syscall.SIGKILL); err != nil {
		k.log.Error("cannot end the self-test", "pid", k.upgrade.pid, "error", err)
	}
}

func (k *keeper) finishUpgrade(err error) {
	now := time.Now()
	k.upgrade.report(err)
	k.upgrade = nil
	k.status.UpgradeAt, k.status.UpgradeError = &now, ""
	if err != nil {
		k.status.UpgradeError = err.Error()
		k.log.Error("cannot upgrade the supervisor", "error", err)
	}
	k.publish()
}

// outputTail returns the end of what the self-test printed.
func (u *upgrade) outputTail() string {
	const most = 2048
	defer u.output.Close()
	size, err := u.output.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	b := make([]byte, min(size, most))
	if _, err := u.output.ReadAt(b, size-int64(len(b))); err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	return strings.TrimSpace(string(b))
}
