// Package dockertest starts real Docker engines for tests.
package dockertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/berthrun/berth/internal/engine/docker/api"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// Options configure an engine.
type Options struct {
	// NetNS is the name of the network namespace that the engine runs in, "" for the test's.
	NetNS string
	// LiveRestore keeps containers running while the engine does not.
	LiveRestore bool
	// Args are added to the command line.
	Args []string
}

// Daemon is one running engine with directories of its own.
type Daemon struct {
	// Endpoint is its address. Root and Log are on the host.
	Endpoint, Root, Log string

	t     testing.TB
	dir   string
	args  []string
	cmd   *exec.Cmd
	ended chan struct{}
}

// Start starts an engine and waits until it answers. It is the dockerd that BERTH_DOCKERD
// names, whose directory also has containerd and runc, or the one in PATH. When the test ends,
// it removes the engine with all containers.
func Start(t testing.TB, opts Options) *Daemon {
	t.Helper()
	require.Root(t)
	program := os.Getenv("BERTH_DOCKERD")
	if program == "" {
		program = require.Binary(t, "dockerd")
	}
	dir, err := os.MkdirTemp("", "dkr-") // sockets below it have short paths
	must(t, err)
	d := &Daemon{
		Endpoint: "unix://" + filepath.Join(dir, "sock"), Root: filepath.Join(dir, "root"), Log: filepath.Join(dir, "log"),
		t: t, dir: dir,
	}
	runtime := writeRuntime(t, dir)
	d.args = []string{
		program, "--data-root", d.Root, "--exec-root", filepath.Join(dir, "exec"), "--pidfile", filepath.Join(dir, "pid"),
		"--host", d.Endpoint, "--bridge", "none", "--iptables=false", "--ip6tables=false",
		"--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", "/" + filepath.Base(dir),
		"--add-runtime", "fit=" + runtime, "--default-runtime", "fit",
	}
	if opts.LiveRestore {
		d.args = append(d.args, "--live-restore")
	}
	d.args = append(d.args, opts.Args...)
	if opts.NetNS != "" {
		d.args = append([]string{"nsenter", "--net=/run/netns/" + opts.NetNS}, d.args...)
	}
	t.Cleanup(d.remove)
	d.Launch()
	return d
}

// Launch starts the engine again after Stop or Kill, and waits until it answers.
func (d *Daemon) Launch() {
	d.t.Helper()
	log, err := os.OpenFile(d.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must(d.t, err)
	defer log.Close()
	d.cmd = exec.Command(d.args[0], d.args[1:]...)
	program := d.args[0]
	if program == "nsenter" {
		program = d.args[2]
	}
	d.cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))
	d.cmd.Stdout, d.cmd.Stderr = log, log
	must(d.t, d.cmd.Start())
	d.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait()
		close(ended)
	}(d.cmd, d.ended)
	d.await()
}

func (d *Daemon) await() {
	d.t.Helper()
	client, err := api.New(api.Options{Endpoint: d.Endpoint})
	must(d.t, err)
	defer client.Close()
	ctx, stop := context.WithTimeout(context.Background(), require.Patience(time.Minute))
	defer stop()
	for {
		if _, err = client.Version(ctx); err == nil {
			return
		}
		select {
		case <-d.ended:
			d.t.Fatalf("the Docker engine has ended:\n%s", d.LogTail())
		case <-ctx.Done():
			d.t.Fatalf("the Docker engine does not answer: %v\n%s", err, d.LogTail())
		case <-time.After(50 * time.Millisecond): // the engine has no event for it
		}
	}
}

// Pid is the engine's process.
func (d *Daemon) Pid() int { return d.cmd.Process.Pid }

// Kill ends the engine by SIGKILL. Its containerd ends with it. The file with the pid of
// containerd goes too: the pid may stay as that of a zombie, which the next engine would take for
// a running containerd.
func (d *Daemon) Kill() {
	d.t.Helper()
	d.end(syscall.SIGKILL)
	if err := os.Remove(filepath.Join(d.dir, "exec/containerd/containerd.pid")); err != nil && !errors.Is(err, os.ErrNotExist) {
		d.t.Error(err)
	}
}

// Stop ends the engine by SIGTERM. Containers end too, unless it has LiveRestore.
func (d *Daemon) Stop() { d.end(syscall.SIGTERM) }

// Restart stops the engine and starts it again.
func (d *Daemon) Restart() {
	d.t.Helper()
	d.Stop()
	d.Launch()
}

func (d *Daemon) end(sig syscall.Signal) {
	d.t.Helper()
	if d.cmd == nil {
		return
	}
	_ = d.cmd.Process.Signal(sig) // it may have exited already
	select {
	case <-d.ended:
	case <-time.After(require.Patience(time.Minute)):
		d.t.Errorf("the Docker engine does not end on %v\n%s", sig, d.LogTail())
		_ = d.cmd.Process.Kill()
		<-d.ended
	}
}

// LogTail is the end of the engine's log, for messages.
func (d *Daemon) LogTail() string {
	data, err := os.ReadFile(d.Log)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-8<<10):])
}

// remove ends the engine with what it has started, and removes its files and cgroups.
func (d *Daemon) remove() {
	d.end(syscall.SIGTERM)
	must(d.t, d.killRest())
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(d.dir))
	must(d.t, err)
	for i := range mounts {
		if err := sysmount.Detach(mounts[len(mounts)-1-i].Mountpoint); err != nil {
			d.t.Error(err)
		}
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/" + filepath.Base(d.dir))
	for _, group := range append(groups, "/sys/fs/cgroup/"+filepath.Base(d.dir)) {
		removeGroups(group)
	}
	if d.t.Failed() {
		d.t.Logf("end of the Docker engine's log:\n%s", d.LogTail())
	}
	must(d.t, os.RemoveAll(d.dir))
}

// killRest kills the processes whose command line names the engine's directory: containerd, its
// shims. Shims of containers that still run kill their containers' processes.
func (d *Daemon) killRest() error {
	for deadline := time.Now().Add(require.Patience(20 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		files, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			return err
		}
		left := 0
		for _, file := range files {
			data, err := os.ReadFile(file)
			var pid int
			if err != nil || !strings.Contains(string(data), d.dir+"/") {
				continue
			}
			if _, err := fmt.Sscanf(file, "/proc/%d/", &pid); err == nil && pid != os.Getpid() {
				left++
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if left == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.New("processes of the Docker engine do not end")
		}
	}
}

// removeGroups removes a cgroup and those below it. Processes in it are killed first.
func removeGroups(dir string) {
	_ = filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			data, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
			for word := range strings.FieldsSeq(string(data)) {
				var pid int
				if _, err := fmt.Sscan(word, &pid); err == nil && pid > 1 {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		}
		return nil
	})
	var dirs []string
	_ = filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	for i := range dirs {
		for range 100 {
			if err := syscall.Rmdir(dirs[len(dirs)-1-i]); !errors.Is(err, syscall.EBUSY) {
				break
			}
			time.Sleep(10 * time.Millisecond) // a killed process leaves its cgroup a moment later
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
