package dockertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// patience bounds how long an engine may take to start or to end.
const patience = time.Minute

// tmpDir is the engine's temporary directory, in its own.
const tmpDir = "tmp"

// Launch starts the engine after Stop or Kill, and waits until it answers.
func (d *Daemon) Launch() {
	d.t.Helper()
	log, err := os.OpenFile(d.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must(d.t, err)
	defer log.Close()
	cmd := exec.Command(d.args[0], d.args[1:]...) //nolint:noctx // it ends with remove
	// Engines mount root filesystems in their temporary directory for a moment. What one that is killed
	// leaves there goes with the engine's other directories.
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(d.Program)+":"+os.Getenv("PATH"), "TMPDIR="+filepath.Join(d.dir, tmpDir))
	cmd.Stdout, cmd.Stderr = log, log
	must(d.t, cmd.Start())
	ended := make(chan struct{})
	d.cmd, d.ended = cmd, ended
	go func() {
		_ = cmd.Wait() // the status of an engine that a test killed means nothing
		close(ended)
	}()
	d.await()
}

func (d *Daemon) await() {
	d.t.Helper()
	client, err := api.New(api.Options{Endpoint: d.Endpoint})
	must(d.t, err)
	defer client.Close()
	ctx, stop := context.WithTimeout(context.Background(), require.Patience(patience))
	defer stop()
	for {
		if _, err = client.Version(ctx); err == nil {
			d.answered = true
			return
		}
		select {
		case <-d.ended:
			err := fmt.Errorf("the Docker engine has ended:\n%s", d.LogTail())
			if !d.answered {
				require.Docker(d.t, err)
			}
			d.t.Fatal(err)
		case <-ctx.Done():
			d.t.Fatalf("the Docker engine does not answer: %v\n%s", err, d.LogTail())
		case <-time.After(50 * time.Millisecond): // the engine has no event for it
		}
	}
}

// Pid is the engine's process.
func (d *Daemon) Pid() int { return d.cmd.Process.Pid }

// Kill ends the engine and its containerd by SIGKILL. Containers and their shims stay.
func (d *Daemon) Kill() {
	d.t.Helper()
	containerd := d.openContainerd()
	d.end(syscall.SIGKILL)
	if containerd == nil {
		return
	}
	defer containerd.Close()
	must(d.t, endProcess(containerd))
	// The pid may stay as that of a zombie, which the next engine would take for a containerd.
	must(d.t, errs.IgnoreNotExist(os.Remove(d.containerdPidFile())))
}

// Stop ends the engine by SIGTERM. Containers end, too, unless the engine has LiveRestore.
func (d *Daemon) Stop() {
	d.t.Helper()
	d.end(syscall.SIGTERM)
}

// Restart stops the engine and starts it again.
func (d *Daemon) Restart() {
	d.t.Helper()
	d.Stop()
	d.Launch()
}

// LogTail is the end of the engine's log, for messages.
func (d *Daemon) LogTail() string {
	data, err := os.ReadFile(d.Log)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-8<<10):])
}

func (d *Daemon) end(sig syscall.Signal) {
	d.t.Helper()
	if d.cmd == nil {
		return
	}
	if err := d.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		d.t.Error(err)
	}
	select {
	case <-d.ended:
	case <-time.After(require.Patience(patience)):
		d.t.Errorf("the Docker engine does not end on %v\n%s", sig, d.LogTail())
		_ = d.cmd.Process.Kill()
		<-d.ended
	}
}

func (d *Daemon) containerdPidFile() string {
	return filepath.Join(d.dir, "exec/containerd/containerd.pid")
}

// openContainerd returns a pidfd of the containerd that the engine has started, nil for none.
func (d *Daemon) openContainerd() *os.File {
	d.t.Helper()
	data, err := os.ReadFile(d.containerdPidFile())
	if err != nil {
		return nil
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	must(d.t, err)
	return d.openOwn(pid)
}

// openOwn returns a pidfd of a process whose command line names the engine's directory, nil
// for another process.
func (d *Daemon) openOwn(pid int) *os.File {
	pidfd, err := sysproc.OpenPidfd(pid)
	if err != nil {
		return nil // it has ended
	}
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil || !strings.Contains(string(data), d.dir+"/") {
		pidfd.Close()
		return nil
	}
	return pidfd
}

// endProcess kills a process and waits until it has ended.
func endProcess(pidfd *os.File) error {
	ctx, stop := context.WithTimeout(context.Background(), require.Patience(patience))
	defer stop()
	if err := sysproc.SignalPidfd(pidfd, syscall.SIGKILL); err != nil {
		return errs.IgnoreNotFound(err)
	}
	return sysproc.AwaitExit(ctx, pidfd)
}
