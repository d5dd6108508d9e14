package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/dockertest"
)

// dockerEngine is a Docker Engine with directories of its own. Its programs are links in one of
// them, so that the memory of its processes counts for one peer.
type dockerEngine struct {
	dir, bin string
	process  *exec.Cmd
}

// enginePrograms are dockerd and what it starts.
func enginePrograms() []string {
	return []string{"dockerd", "containerd", "containerd-shim-runc-v2", "runc"}
}

func newDockerEngine(peerDir string) *dockerEngine {
	dir := filepath.Join(peerDir, "engine")
	return &dockerEngine{dir: dir, bin: filepath.Join(dir, "bin")}
}

func (e *dockerEngine) endpoint() string { return "unix://" + filepath.Join(e.dir, "docker.sock") }

// link makes the engine's directory of programs from those in the directory bin.
func (e *dockerEngine) link(bin string) error { return linkPrograms(bin, e.bin, enginePrograms()...) }

// start starts the engine and returns when it answers.
func (e *dockerEngine) start(ctx context.Context) error {
	config := filepath.Join(e.dir, "daemon.json")
	if err := os.WriteFile(config, []byte("{}"), 0o600); err != nil {
		return err
	}
	runtime, err := dockertest.RuntimeArguments(e.dir)
	if err != nil {
		return err
	}
	logFile := filepath.Join(e.dir, "docker.log")
	log, err := os.Create(logFile)
	if err != nil {
		return err
	}
	defer log.Close()
	e.process = exec.Command(filepath.Join(e.bin, "dockerd"), append([]string{ //nolint:noctx // ended by stop, after the context
		"--config-file", config, "--host", e.endpoint(),
		"--data-root", filepath.Join(e.dir, "root"), "--exec-root", e.volatile(), "--pidfile", filepath.Join(e.dir, "pid"),
		"--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false",
		"--exec-opt", "native.cgroupdriver=cgroupfs",
	}, runtime...)...)
	e.process.Env = append(os.Environ(), "PATH="+e.bin+":"+os.Getenv("PATH"))
	e.process.Stdout, e.process.Stderr = log, log
	if err := e.process.Start(); err != nil {
		return err
	}
	client, err := api.New(api.Options{Endpoint: e.endpoint()})
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		_, err := client.Version(ctx)
		if err == nil {
			return nil
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("%w; see %s", err, logFile)
		}
	}
}

func (e *dockerEngine) stop() error {
	if err := e.process.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	_ = e.process.Wait() // its code does not matter here
	return nil
}

// volatile is the engine's directory that is below /run on a node.
func (e *dockerEngine) volatile() string { return filepath.Join(e.dir, "exec") }

// owns reports whether a program is one of the engine's.
func (e *dockerEngine) owns(exe string) bool { return strings.HasPrefix(exe, e.bin+"/") }

// newBerthOverDocker is a berth that runs containers through a Docker Engine.
func newBerthOverDocker(o options) (*peer, error) {
	p, err := newBerth(o, "docker", o.berth)
	if err != nil {
		return nil, err
	}
	p.engine = newDockerEngine(filepath.Dir(p.socket))
	p.argv = append(p.argv, "--engine", "docker", "--docker-endpoint", p.engine.endpoint())
	p.config += ", engine docker"
	p.volatile = append(p.volatile, p.engine.volatile())
	p.pause = true
	berth := p.owns
	p.owns = func(exe string) bool { return berth(exe) || p.engine.owns(exe) }
	return p, p.engine.link(o.bin)
}

// newCRIDockerd is a cri-dockerd over a Docker Engine of its own.
func newCRIDockerd(o options, r *registry) (*peer, error) {
	dir := filepath.Join(o.work, "cri-dockerd")
	engine := newDockerEngine(dir)
	p := &peer{
		name:     "cri-dockerd",
		beside:   "docker",
		socket:   filepath.Join(dir, "cri.sock"),
		logFile:  filepath.Join(dir, "cri-dockerd.log"),
		logs:     filepath.Join(dir, "logs"),
		volatile: []string{engine.volatile()},
		config:   "network plugin cni\n" + fmt.Sprintf(cniNetwork, "crid0", dir, "10.202.0.0/16"),
		argv: []string{
			o.criDockerd, "--container-runtime-endpoint", "unix://" + filepath.Join(dir, "cri.sock"),
			"--docker-endpoint", engine.endpoint(), "--cri-dockerd-root-directory", filepath.Join(dir, "root"),
			"--network-plugin", "cni", "--cni-bin-dir", o.bin, "--cni-conf-dir", filepath.Join(dir, "net.d"),
			"--cni-cache-dir", filepath.Join(dir, "cni-cache"), "--pod-infra-container-image", r.image("pause:1"),
		},
		pause:  true,
		engine: engine,
		owns:   func(exe string) bool { return exe == o.criDockerd || engine.owns(exe) },
	}
	return p, engine.link(o.bin)
}
