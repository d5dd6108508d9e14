package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// execs runs commands in a resident, with and without a terminal. An answer must be right. A
// command that was under way at a kill may fail.
func (a *actor) execs(pod string) error {
	one, end, err := a.resident(pod)
	if err != nil {
		return err
	}
	for i := 0; !a.test.ended(); i++ {
		command := a.execSync
		if i%3 == 2 {
			command = a.execTTY
		}
		if err := command(one, i); err != nil {
			return fmt.Errorf("exec %d: %w", i, err)
		}
		a.sleep(time.Duration(a.rng.Int64N(int64(40 * time.Millisecond))))
	}
	return end()
}

func (a *actor) execSync(one *container, i int) error {
	code := int32(a.rng.IntN(120))
	script := fmt.Sprintf("echo out %d; read -t 0.%02d _ <> /tmp/pause; echo err %d >&2; exit %d", i, a.rng.IntN(30), i, code)
	ctx, cancel := context.WithTimeout(context.Background(), awayTimeout())
	defer cancel()
	answer, err := a.runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: one.id, Cmd: []string{"/bin/sh", "-c", script}, Timeout: 50})
	if err != nil {
		if away(err) {
			a.done.cutExecs.Add(1)
			return nil
		}
		return err
	}
	a.done.execs.Add(1)
	if answer.ExitCode != code || string(answer.Stdout) != fmt.Sprintf("out %d\n", i) || string(answer.Stderr) != fmt.Sprintf("err %d\n", i) {
		return fmt.Errorf("code %d, want %d; stdout %q, stderr %q", answer.ExitCode, code, answer.Stdout, answer.Stderr)
	}
	return nil
}

// execTTY talks to a shell on a terminal, by berth's own command: the sessions end in the network
// namespace that stands for the host.
func (a *actor) execTTY(one *container, i int) error {
	before := a.outageCount()
	code := 1 + a.rng.IntN(120)
	script := fmt.Sprintf("echo ready; read word; echo got $word %d; exit %d", i, code)
	session := a.b.InHost(filepath.Join(a.b.Bin, "berth"), "pod", "exec", "-it", "--endpoint", "unix://"+a.b.Socket,
		one.pod, "--", "/bin/sh", "-c", script)
	session.Stdin = strings.NewReader("hello\n")
	out, err := session.CombinedOutput()
	whole := strings.Contains(string(out), fmt.Sprintf("got hello %d", i))
	if session.ProcessState.ExitCode() == code && whole {
		a.done.execs.Add(1)
		return nil
	}
	if a.outageSince(before) {
		a.done.cutExecs.Add(1)
		return nil // the session ended with the daemon, or the terminal with all three
	}
	return fmt.Errorf("on a terminal: %w, want code %d: %q", err, code, out)
}

// rotations renames a resident's log again and again and requests a new one.
func (a *actor) rotations(pod string) error {
	one, end, err := a.resident(pod)
	if err != nil {
		return err
	}
	for !a.test.ended() {
		a.sleep(time.Duration(a.rng.Int64N(int64(300 * time.Millisecond))))
		if err := os.Rename(one.logs.path, one.logs.path+".1"); err != nil {
			return fmt.Errorf("rotate: %w", err)
		}
		if err := a.retryWhileAway(func(ctx context.Context) error {
			_, err := a.runtime.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: one.id})
			return err
		}); err != nil {
			return fmt.Errorf("reopen log: %w", err)
		}
		if _, err := os.Stat(one.logs.path); err != nil {
			return fmt.Errorf("reopen log: %w", err)
		}
		if err := one.logs.caughtUp(); err != nil {
			return err
		}
	}
	return end()
}

// caughtUp waits until the follower reads the newest file. The follower must not miss one that
// exists for a short time.
func (f *follower) caughtUp() error {
	for deadline := time.Now().Add(awayTimeout()); ; time.Sleep(followEvery) {
		f.mu.Lock()
		current := f.file != nil && !f.rotated()
		err := f.err
		f.mu.Unlock()
		switch {
		case current || err != nil:
			return err
		case time.Now().After(deadline):
			return errors.New("the follower does not follow")
		}
	}
}
