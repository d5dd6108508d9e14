package main

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

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/sys/cgroup"
)

// peer is one runtime under measurement.
type peer struct {
	name    string
	argv    []string
	socket  string
	logFile string
	logs    string // directory of pods' logs
	// volatile are the directories that are below /run on a node, and so on a tmpfs.
	volatile []string
	config   string // printed with the result
	// files are further files beside config.toml, by name.
	files   map[string]string
	version string
	// beside names the peer that this one is compared with.
	beside string
	// owns reports, by its executable's path, whether a process is part of the runtime, for memory.
	owns func(exe string) bool
	// pause is true if each pod has a pause process.
	pause bool
	// engine is the Docker Engine that the runtime uses, nil for none.
	engine *dockerEngine

	process *exec.Cmd
	conn    *grpc.ClientConn
	runtime runtimeapi.RuntimeServiceClient
	images  runtimeapi.ImageServiceClient
}

// newBerth is a berth with links to the programs in a directory, so that the memory of its processes
// counts for one peer.
func newBerth(o options, name, programs string) (*peer, error) {
	dir := filepath.Join(o.work, name)
	bin := filepath.Join(dir, "bin")
	if err := linkPrograms(programs, bin, "berth", "berth-supervisor"); err != nil {
		return nil, err
	}
	return &peer{
		name:     name,
		beside:   "berth", // for a second berth
		socket:   filepath.Join(dir, "berth.sock"),
		logFile:  filepath.Join(dir, "berth.log"),
		logs:     filepath.Join(dir, "logs"),
		volatile: []string{filepath.Join(dir, "state")},
		argv: []string{
			filepath.Join(bin, "berth"), "serve", "--network", "builtin", "--listen", "unix://" + filepath.Join(dir, "berth.sock"),
			"--root", filepath.Join(dir, "root"), "--state", filepath.Join(dir, "state"),
		},
		config: "berth serve --network builtin, else defaults",
		owns:   func(exe string) bool { return strings.HasPrefix(exe, bin+"/") },
	}, nil
}

// linkPrograms makes a directory with hard links to programs in another one, or copies of them where
// that is another file system. /proc/PID/exe has the path of the link.
func linkPrograms(from, to string, names ...string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, name := range names {
		program := filepath.Join(to, name)
		err := os.Link(filepath.Join(from, name), program)
		if errors.Is(err, unix.EXDEV) {
			var data []byte
			if data, err = os.ReadFile(filepath.Join(from, name)); err == nil {
				err = os.WriteFile(program, data, 0o755) //nolint:gosec // a program
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

const containerdConfig = `version = 3
root = '%[1]s/root'
state = '%[1]s/state'
[grpc]
  address = '%[1]s/containerd.sock'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '%[2]s'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['%[3]s']
    conf_dir = '%[1]s/net.d'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = '%[3]s/runc'
`

const cniNetwork = `{"cniVersion": "1.0.0", "name": "bench", "plugins": [
  {"type": "bridge", "bridge": "%[1]s", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "%[2]s/ipam", "ranges": [[{"subnet": "%[3]s"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
`

func newContainerd(o options, name string, r *registry) *peer {
	dir := filepath.Join(o.work, name)
	config := fmt.Sprintf(containerdConfig, dir, r.image("pause:1"), o.bin)
	p := &peer{
		name:     name,
		beside:   "berth",
		pause:    true,
		socket:   filepath.Join(dir, "containerd.sock"),
		logFile:  filepath.Join(dir, "containerd.log"),
		logs:     filepath.Join(dir, "logs"),
		volatile: []string{filepath.Join(dir, "state")},
		config:   config + fmt.Sprintf(cniNetwork, "ctd0", dir, "10.201.0.0/16"),
		// A v1 controller that is active but mounted nowhere breaks its metrics.
		argv: []string{
			"unshare", "--mount", "--propagation", "private", "bash", "-c",
			`mount --make-rshared /
			 if [ -d /sys/fs/cgroup/memory ] && ! mountpoint -q /sys/fs/cgroup/hugetlb; then
			   mkdir -p /sys/fs/cgroup/hugetlb; mount -t cgroup -o hugetlb cgroup /sys/fs/cgroup/hugetlb || true
			 fi
			 export PATH="$1:$PATH"; exec containerd --config "$2"`,
			"containerd", o.bin, filepath.Join(dir, "config.toml"),
		},
		owns: func(exe string) bool {
			return exe == filepath.Join(o.bin, "containerd") || strings.HasPrefix(exe, o.bin+"/containerd-shim")
		},
	}
	return p
}

// prepare writes what the runtime reads at its start.
func (p *peer) prepare() error {
	dir := filepath.Dir(p.socket)
	if err := os.MkdirAll(p.logs, 0o755); err != nil {
		return err
	}
	for _, volatile := range p.volatile {
		if err := mountTmpfs(volatile); err != nil {
			return err
		}
	}
	for name, content := range p.files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	config, network, found := strings.Cut(p.config, "{\"cniVersion")
	if !found {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(dir, "net.d"), 0o755); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "config.toml"), []byte(config), 0o600),
		os.WriteFile(filepath.Join(dir, "net.d", "10-bench.conflist"), []byte("{\"cniVersion"+network), 0o600),
	)
}

// mountTmpfs mounts a tmpfs on a directory that it makes. The mount namespace is that of the bench, and ends
// with it.
func mountTmpfs(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("cannot mount a tmpfs on %s: %w", dir, err)
	}
	return nil
}

// start starts the runtime and returns when it answers and its network is ready.
func (p *peer) start(ctx context.Context) error {
	if err := p.prepare(); err != nil {
		return err
	}
	if p.engine != nil {
		if err := p.engine.start(ctx); err != nil {
			return err
		}
	}
	if err := p.launch(); err != nil {
		return err
	}
	// gRPC's own pause of a second between attempts would hide the duration of a restart.
	quick := grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1, MaxDelay: 5 * time.Millisecond},
		MinConnectTimeout: 20 * time.Second, // else an attempt on a busy machine ends after the pause
	}
	conn, err := grpc.NewClient("unix://"+p.socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(quick))
	if err != nil {
		return err
	}
	p.conn, p.runtime, p.images = conn, runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	version, err := p.runtime.Version(ctx, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("%w; see %s", err, p.logFile)
	}
	p.version = version.RuntimeName + " " + version.RuntimeVersion
	for {
		status, err := p.runtime.Status(ctx, &runtimeapi.StatusRequest{})
		if err != nil {
			return err
		}
		ready := len(status.Status.Conditions) > 0
		for _, condition := range status.Status.Conditions {
			if strings.HasSuffix(condition.Type, "Ready") && !condition.Status {
				ready = false
			}
		}
		if ready {
			return nil
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("not ready: %v", status.Status.Conditions)
		}
	}
}

func (p *peer) launch() error {
	log, err := os.OpenFile(p.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	p.process = exec.Command(p.argv[0], p.argv[1:]...) //nolint:noctx // ended by shutdown, after the context
	p.process.Stdout, p.process.Stderr = log, log
	return p.process.Start()
}

// stop ends the daemon; its pods keep running.
func (p *peer) stop() error {
	if err := p.process.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	_ = p.process.Wait() // its code does not matter here
	return nil
}

// shutdown removes every pod and ends the daemon.
func (p *peer) shutdown() error {
	if p.conn == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	list, err := p.runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err == nil {
		for _, sandbox := range list.Items {
			err = errors.Join(err, p.down(ctx, pod{sandbox: sandbox.Id}))
		}
	}
	err = errors.Join(err, p.conn.Close(), p.stop())
	if p.engine != nil {
		err = errors.Join(err, p.engine.stop())
	}
	tree, treeErr := cgroup.Find()
	if treeErr != nil {
		return errors.Join(err, treeErr)
	}
	return errors.Join(err, tree.Remove(cgroupOf(p)))
}

// memory returns the PSS of all the runtime's processes, in bytes.
func (p *peer) memory() (int64, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	var total int64
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		exe, err := os.Readlink(filepath.Join("/proc", entry.Name(), "exe"))
		if err != nil {
			continue // it has ended meanwhile
		}
		exe = strings.TrimSuffix(exe, " (deleted)")
		isPause := p.pause && exe == "/pause" && inCgroup(entry.Name(), cgroupOf(p))
		if !isPause && !p.owns(exe) {
			continue
		}
		rollup, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "smaps_rollup"))
		if err != nil {
			continue // it has ended meanwhile
		}
		for _, line := range strings.Split(string(rollup), "\n") {
			var kib int64
			if n, _ := fmt.Sscanf(line, "Pss: %d kB", &kib); n == 1 {
				total += kib << 10
			}
		}
	}
	return total, nil
}

// cgroupOf is the parent of the cgroups of a runtime's pods.
func cgroupOf(p *peer) string { return "/bench-" + p.name }

// inCgroup reports whether a process is in a cgroup or below it.
func inCgroup(pid, cgroup string) bool {
	data, err := os.ReadFile(filepath.Join("/proc", pid, "cgroup"))
	return err == nil && strings.Contains(string(data), ":"+cgroup+"/")
}

// machineCPU returns how long all processors have been busy since boot.
func machineCPU() (time.Duration, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(data), "\n")
	var ticks int64
	for i, field := range strings.Fields(line)[1:9] {
		value, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		if i != 3 && i != 4 { // idle, iowait
			ticks += value
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
