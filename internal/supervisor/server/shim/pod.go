package shim

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/ocicommand/launch"
	"github.com/berthrun/berth/internal/supervisor/server/shim/sink"
	"github.com/berthrun/berth/internal/supervisor/server/shim/taskapi"
	"github.com/berthrun/berth/internal/supervisor/shimoptions"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

const (
	// connectTimeout bounds the connection to a shim.
	connectTimeout = 5 * time.Second
	// shutdownTimeout bounds the wait for a shim that is to end by itself.
	shutdownTimeout = 3 * time.Second
	// killTimeout bounds the wait for the end of a shim that was killed.
	killTimeout = 5 * time.Second
	// maxSocket is the longest path of a socket that shims make.
	maxSocket = 106
	// socketName is how long the name of a shim's socket is.
	socketName = 64
)

// The annotations that name the pod of a container.
const sandboxAnnotation = "io.kubernetes.cri.sandbox-id"

// podOf returns the name of the pod of a container, whose containers share a shim.
func podOf(id string, spec *specs.Spec) (string, error) {
	pod := cmp.Or(spec.Annotations[sandboxAnnotation], id)
	const letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-."
	if len(pod) > 128 || strings.Trim(pod, letters) != "" || strings.Trim(pod, ".") == "" {
		return "", fmt.Errorf("annotation %s %.200q cannot be the name of a directory: %w", sandboxAnnotation, pod, errs.Invalid)
	}
	return pod, nil
}

// podState is the record of a pod's shim. It is written before the shim gets its first call.
type podState struct {
	Handler Handler         `json:"handler"`
	Address taskapi.Address `json:"address"`
	// Processes are all that the program left when it started the shim.
	Processes []process `json:"processes"`
	// Sandbox is the process of the sandbox, with the sandbox API; nil before its start.
	Sandbox *process `json:"sandbox,omitempty"`
}

// process identifies a process of this boot.
type process struct {
	Pid   int    `json:"pid"`
	Start uint64 `json:"start"`
}

const (
	podName = "shim.json"
	// lockName is the file of the lock that the launcher of a shim holds, deleteLockName that of the launcher of a
	// deletion by the shim's program.
	lockName       = "launch.lock"
	deleteLockName = "delete.lock"
	logName        = "log"
)

func (s *Shims) podDir(pod string) string { return filepath.Join(s.dir, groupsName, pod) }

// readPod returns the record of a pod's shim. Kind NotFound when there is none.
func (s *Shims) readPod(pod string) (*podState, error) {
	p := &podState{}
	return p, readJSON(filepath.Join(s.podDir(pod), podName), p)
}

// client returns a connection to the shim of a pod. Kind NotFound when the pod has none, Unavailable when it
// has ended or does not accept connections.
func (s *Shims) client(ctx context.Context, pod string) (*taskapi.Client, error) {
	s.mu.Lock()
	c := s.clients[pod]
	s.mu.Unlock()
	if c != nil && !isClosed(c.Closed()) {
		return c, nil
	}
	found, err := s.readPod(pod)
	if err != nil {
		return nil, err
	}
	return s.connect(ctx, pod, found)
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// connect connects to a shim. It waits for a shim that does not listen yet, as long as a process of it lives.
func (s *Shims) connect(ctx context.Context, pod string, found *podState) (*taskapi.Client, error) {
	ctx, stop := context.WithTimeout(ctx, connectTimeout)
	defer stop()
	for {
		conn, err := dial(ctx, found.Address.Socket)
		if !found.lives() { // a process that it has started may have its socket
			if err == nil {
				conn.Close()
			}
			return nil, fmt.Errorf("the shim has ended: %w", errs.Unavailable)
		}
		if err == nil {
			return s.keep(pod, taskapi.NewClient(conn, found.Address.Version, namespace)), nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("cannot connect to the shim: %w: %w", err, errs.Unavailable)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func dial(ctx context.Context, socket string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	_, uid, err := sysfd.PeerPid(conn.(*net.UnixConn))
	if err == nil && uid != os.Geteuid() {
		err = fmt.Errorf("a process of user %d listens at %s: %w", uid, socket, errs.Invalid)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// single connects to the shim of a pod for one call. A shim gives up a call when its connection ends: a create
// should end with this process, and a start must not, which would take the process with it. file is another
// descriptor of the connection, for the keeper, so that the call goes on. The caller closes both.
func (s *Shims) single(ctx context.Context, pod string) (client *taskapi.Client, file *os.File, err error) {
	found, err := s.readPod(pod)
	if err != nil {
		return nil, nil, err
	}
	ctx, stop := context.WithTimeout(ctx, connectTimeout)
	defer stop()
	conn, err := dial(ctx, found.Address.Socket)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot connect to the shim: %w: %w", err, errs.Unavailable)
	}
	file, err = conn.(*net.UnixConn).File()
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return taskapi.NewClient(conn, found.Address.Version, namespace), file, nil
}

// keep keeps a connection for further calls, unless another call has made one.
func (s *Shims) keep(pod string, c *taskapi.Client) *taskapi.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.clients[pod]; old != nil && !isClosed(old.Closed()) {
		c.Close()
		return old
	}
	s.clients[pod] = c
	return c
}

func (s *Shims) disconnect(pod string) {
	s.mu.Lock()
	c := s.clients[pod]
	delete(s.clients, pod)
	s.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// lives reports whether a process of the shim lives.
func (p *podState) lives() bool {
	for _, each := range p.Processes {
		if proc, err := sysproc.ReadProc(each.Pid); err == nil && proc.Start == each.Start && !proc.Zombie() {
			return true
		}
	}
	return false
}

// started reports whether a process is one of the shim, or a descendant of one.
func (p *podState) started(pid int) bool {
	for pid > 1 {
		proc, err := sysproc.ReadProc(pid)
		if err != nil {
			return false
		}
		if slices.Contains(p.Processes, process{pid, proc.Start}) {
			return true
		}
		pid = proc.PPid
	}
	return false
}

// ensure starts the shim of a pod when the pod has none, or one that has ended.
func (r *Runtime) ensure(ctx context.Context, pod string, systemd bool, spec *specs.Spec) error {
	s := r.all
	unlock, err := s.locks.Lock(ctx, pod)
	if err != nil {
		return r.handler.fault(ctx, stageShim, err)
	}
	defer unlock()
	_, err = s.client(ctx, pod)
	if err == nil {
		return nil
	}
	if !errors.Is(err, errs.NotFound) {
		if found, readErr := s.readPod(pod); readErr == nil && found.lives() {
			return r.handler.fault(ctx, stageShim, err) // it has containers, perhaps
		}
		s.log.Warn("the shim of a pod is not there any more; starting another one", "pod", pod, "handler", r.handler.Name, "error", err)
	}
	if err := s.end(ctx, pod, true); err != nil {
		return r.handler.fault(ctx, stageShim, err)
	}
	if err := r.begin(ctx, pod, systemd, spec); err != nil {
		return r.handler.fault(ctx, stageShim, errors.Join(err, s.end(context.WithoutCancel(ctx), pod, false)))
	}
	return nil
}

// begin starts a shim. The caller has locked the pod, and calls end on an error.
func (r *Runtime) begin(ctx context.Context, pod string, systemd bool, spec *specs.Spec) error {
	s := r.all
	dir := s.podDir(pod)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := s.listen(); err != nil { // the directory keeps endSink from ending the sink
		return err
	}
	// Shims read annotations of it.
	about := &specs.Spec{Version: specVersion, Annotations: map[string]string{sandboxAnnotation: pod}}
	for key, value := range spec.Annotations {
		about.Annotations[key] = value
	}
	if err := writeJSON(filepath.Join(dir, specName), about); err != nil {
		return err
	}
	options, err := r.options(shimoptions.Values{Systemd: systemd})
	if err != nil {
		return err
	}
	input := taskapi.Bootstrap{ID: pod, Namespace: namespace, Events: filepath.Join(s.dir, sink.SocketName), Options: options}
	if len(s.dir)+1+socketName <= maxSocket {
		input.SocketDir = s.dir
	}
	begun, address, err := r.startShim(ctx, pod, dir, &input)
	if err != nil {
		return err
	}
	found := &podState{Handler: r.handler, Address: *address}
	for _, pid := range begun.Left {
		if proc, err := sysproc.ReadProc(pid); err == nil {
			found.Processes = append(found.Processes, process{pid, proc.Start})
		}
	}
	if len(found.Processes) == 0 {
		begun.Release()
		s.killStray(ctx, pod, address.Socket) // which an earlier start has left: its program answers with its address
		return fmt.Errorf("it has left no process that could be the shim%s", r.said(dir))
	}
	err = writeJSON(filepath.Join(dir, podName), found)
	if err == nil {
		_, err = s.connect(ctx, pod, found)
	}
	if err != nil {
		begun.Abandon()
		return err
	}
	begun.Release()
	return nil
}

// startShim runs the program. A shim of containerd 2.3 or later reads all parameters on its stdin, an older
// one the options alone.
func (r *Runtime) startShim(ctx context.Context, pod, dir string, input *taskapi.Bootstrap) (*launch.Begun, *taskapi.Address, error) {
	begun, address, err := r.tryStart(ctx, pod, dir, input.Encode())
	if err == nil || ctx.Err() != nil || errors.Is(err, launch.ErrLost) { // the program has not refused the parameters
		return begun, address, err
	}
	begun, address, oldErr := r.tryStart(ctx, pod, dir, input.Options)
	if oldErr == nil || oldErr.Error() == err.Error() {
		return begun, address, oldErr
	}
	return nil, nil, fmt.Errorf("%w (with the parameters of shims before containerd 2.3: %w)", err, oldErr)
}

func (r *Runtime) tryStart(ctx context.Context, pod, dir string, input []byte) (*launch.Begun, *taskapi.Address, error) {
	log := filepath.Join(dir, logName)
	if err := os.WriteFile(log, nil, 0o600); err != nil {
		return nil, nil, err
	}
	begun, output, err := r.runProgram(ctx, &programRun{
		args: r.arguments(pod, "start"), dir: dir, input: input, daemon: true, lock: filepath.Join(dir, lockName),
	})
	if err != nil {
		return nil, nil, err
	}
	address, err := taskapi.ParseStart(output)
	if err != nil {
		begun.Abandon()
		return nil, nil, err
	}
	return begun, address, nil
}

// said is the last line of the shim's log, for errors.
func (r *Runtime) said(dir string) string {
	data, err := os.ReadFile(filepath.Join(dir, logName))
	if err != nil {
		return ""
	}
	if line := lastLine(data); line != "" {
		return ": " + line
	}
	return ""
}

// options returns the options of the shim, with the handler's root, as an Any.
func (r *Runtime) options(values shimoptions.Values) (taskapi.Message, error) {
	kind := shimoptions.Of(r.handler.Path)
	values.Root = r.handler.Root
	value, err := kind.Encode(r.handler.Options, values)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errs.Invalid)
	}
	return taskapi.Any(kind.URL, value), nil
}

// end ends the shim of a pod, and removes what it has left. answers lets it end by itself first. The caller has
// locked the pod. Nil when there is none.
func (s *Shims) end(ctx context.Context, pod string, answers bool) error {
	if err := s.awaitLauncher(ctx, pod); err != nil {
		return err
	}
	found, err := s.readPod(pod)
	if err == nil {
		ended := answers && s.shutDown(ctx, pod, found)
		if found.Handler.SandboxAPI {
			err = s.killStarted(ctx, pod, found)
		} else {
			err = found.kill(ctx)
		}
		if err != nil {
			return err
		}
		for _, each := range found.all() {
			s.forget(each.Pid, each.Start)
		}
		if found.Handler.SandboxAPI && !ended {
			s.clearSandbox(ctx, pod, found)
		}
		removeSocket(ctx, found.Address.Socket)
	}
	for _, socket := range s.usualSockets(pod) { // of a shim that was killed before it was recorded
		if errors.Is(err, errs.NotFound) { // or whose launcher was
			s.killStray(ctx, pod, socket)
		}
		removeSocket(ctx, socket)
	}
	s.disconnect(pod)
	if err := os.RemoveAll(s.podDir(pod)); err != nil {
		return fmt.Errorf("cannot remove the shim's directory: %w", err)
	}
	s.endSink(ctx)
	return nil
}

// awaitLauncher returns when the launcher of a start has ended, which a predecessor may have left: it kills what it
// has started.
func (s *Shims) awaitLauncher(ctx context.Context, pod string) error {
	if _, err := os.Lstat(s.podDir(pod)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock, err := launch.AwaitLock(ctx, filepath.Join(s.podDir(pod), lockName))
	if err != nil {
		return err
	}
	return lock.Close()
}

// shutDown lets a shim end by itself, and reports whether it has.
func (s *Shims) shutDown(ctx context.Context, pod string, found *podState) bool {
	if !found.lives() {
		return false
	}
	timeout := shutdownTimeout
	if found.Handler.SandboxAPI {
		timeout = sandboxShutdownTimeout
	}
	ctx, stop := context.WithTimeout(ctx, timeout)
	defer stop()
	client, err := s.client(ctx, pod)
	if err == nil && found.Handler.SandboxAPI {
		err = client.ShutdownSandbox(ctx, pod)
	}
	if err == nil && !found.Handler.SandboxAPI || errors.Is(err, errs.Unsupported) {
		err = client.Shutdown(ctx, pod)
	}
	if err != nil && !errors.Is(err, taskapi.ErrClosed) {
		s.log.Warn("a shim does not end by itself; it is killed", "pod", pod, "handler", found.Handler.Name, "error", err)
		return false
	}
	for found.lives() && ctx.Err() == nil {
		time.Sleep(2 * time.Millisecond)
	}
	return !found.lives()
}

// all are the processes of a shim and of its sandbox.
func (p *podState) all() []process {
	if p.Sandbox == nil || slices.Contains(p.Processes, *p.Sandbox) {
		return p.Processes
	}
	return append(slices.Clone(p.Processes), *p.Sandbox)
}

// kill kills the processes of a shim, and waits for their end. One that does not end does not keep the others alive.
func (p *podState) kill(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, killTimeout)
	defer stop()
	killed := map[int]*os.File{}
	var faults []error
	for _, each := range p.all() {
		pidfd, err := each.open()
		if err != nil {
			continue // it has ended
		}
		if err := errs.IgnoreNotFound(sysproc.SignalPidfd(pidfd, syscall.SIGKILL)); err != nil {
			pidfd.Close()
			faults = append(faults, fmt.Errorf("cannot kill process %d of the shim: %w", each.Pid, err))
			continue
		}
		killed[each.Pid] = pidfd
	}
	for pid, pidfd := range killed {
		if err := errs.IgnoreNotFound(sysproc.AwaitExit(ctx, pidfd)); err != nil {
			faults = append(faults, fmt.Errorf("process %d of the shim does not end: %w", pid, err))
		}
		pidfd.Close()
	}
	return errors.Join(faults...)
}

// open opens a process. Kind NotFound when it has ended.
func (p process) open() (*os.File, error) {
	pidfd, err := sysproc.OpenPidfd(p.Pid)
	if err != nil {
		return nil, err
	}
	if proc, err := sysproc.ReadProc(p.Pid); err != nil || proc.Start != p.Start {
		pidfd.Close()
		return nil, fmt.Errorf("process %d: %w", p.Pid, errs.NotFound)
	}
	return pidfd, nil
}

// strayTimeout bounds the question for the pid of a shim that has no record.
const strayTimeout = 2 * time.Second

// killStray kills a shim that listens at a socket of a pod and has no record: the launcher that had started it was killed. A
// process that is no child of the keeper or of this process, or that a record of another pod has, is left alone.
func (s *Shims) killStray(ctx context.Context, pod, socket string) {
	if info, err := os.Lstat(socket); err != nil || info.Mode().Type() != os.ModeSocket {
		return
	}
	asking, stop := context.WithTimeout(ctx, strayTimeout)
	defer stop()
	pid := askPid(asking, pod, socket)
	if pid <= 1 {
		return
	}
	pidfd, err := sysproc.OpenPidfd(pid)
	if err != nil {
		return
	}
	defer pidfd.Close()
	proc, err := sysproc.ReadProc(pid)
	if err != nil || proc.PPid != os.Getpid() && proc.PPid != os.Getppid() || s.isRecorded(process{pid, proc.Start}) {
		return
	}
	killing, stop := context.WithTimeout(ctx, killTimeout)
	defer stop()
	err = sysproc.SignalPidfd(pidfd, syscall.SIGKILL)
	if err == nil {
		err = sysproc.AwaitExit(killing, pidfd)
	}
	s.forget(pid, proc.Start)
	if err = errs.IgnoreNotFound(err); err != nil {
		s.log.Warn("cannot kill a shim that has no record, because its launcher was killed", "pod", pod, "pid", pid, "error", err)
		return
	}
	s.log.Warn("killed a shim that has no record, because its launcher was killed", "pod", pod, "pid", pid)
}

// askPid asks the shim at a socket for its pid, over each version of the task API. 0 when it does not answer.
func askPid(ctx context.Context, pod, socket string) int {
	for _, version := range []int{3, 2} {
		conn, err := dial(ctx, socket)
		if err != nil {
			return 0
		}
		client := taskapi.NewClient(conn, version, namespace)
		pid, err := client.Connect(ctx, pod)
		client.Close()
		if err == nil {
			return pid
		}
	}
	return 0
}

// isRecorded reports whether a process is that of a shim with a record.
func (s *Shims) isRecorded(p process) bool {
	pods, err := os.ReadDir(filepath.Join(s.dir, groupsName))
	if err != nil {
		return true
	}
	return slices.ContainsFunc(pods, func(pod fs.DirEntry) bool {
		found, err := s.readPod(pod.Name())
		return err == nil && slices.Contains(found.Processes, p)
	})
}

// usualSockets are where the shims of containerd's library make the socket of a pod.
func (s *Shims) usualSockets(pod string) []string {
	name := fmt.Sprintf("%x", sha256.Sum256([]byte(filepath.Join(s.dir, sink.SocketName, namespace, pod))))
	return []string{filepath.Join(s.dir, name), filepath.Join("/run/containerd/s", name)}
}

// removeSocket removes the socket of a shim that was killed. A path that is no socket, or at which a process
// listens, stays: it is the shim that has named it.
func removeSocket(ctx context.Context, path string) {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != os.ModeSocket {
		return
	}
	ctx, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err == nil {
		conn.Close()
		return
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		_ = os.Remove(path) // it belongs to no one
	}
}
